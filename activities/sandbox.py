"""Worlds on their node: open, run the turn's command once, replay, collect the patch, close.

Invariants 3, 6 and 7: the intent is written before the command runs; a second attempt re-attaches
through the sandbox's own record of the turn id; a sandbox this process does not hold is lost, and
the workflow rebuilds it, from the newest snapshot where the campaign keeps them.
"""

import asyncio
import hashlib
from collections.abc import Sequence

from temporalio import activity

from activities.implements import implements
from infra.db.cache import FactCache
from infra.db.database import Database
from infra.db.fence import Fenced
from infra.db.rollouts import rollouts, snapshots, turns
from infra.db.runs import events
from infra.environments.hosted import HostedWorld
from infra.sandbox.protocol import SandboxBroken, SandboxLost, SandboxRefused
from infra.temporal.faults import SandboxDiverged
from infra.tracking import spans
from mainspring.agents.program import asked_by
from mainspring.agents.protocol import Agent, Command, FormatError
from mainspring.environments.protocol import WorldLost
from mainspring.errors import MainspringError, SandboxError
from mainspring.ids import NodeId, RolloutId, SandboxId, command_id
from mainspring.protocol.activities import (
    CLOSE_SANDBOX,
    COLLECT_PATCH,
    EXECUTE,
    OPEN_SANDBOX,
    RESTORE_SANDBOX,
)
from mainspring.protocol.rollout import (
    ExecuteInput,
    ExecuteResult,
    OpenInput,
    PatchResult,
    RestoreResult,
    RolloutRef,
    SandboxInput,
    SandboxRef,
)
from mainspring.status import EventKind, RolloutPhase
from mainspring.trajectories.turns import Execution
from node.capacity import Admission
from node.held_sandboxes import HeldSandboxes

MAX_STARTS = 6
"""In a row, of a sandbox whose first process dies: then the task is at fault, not bad luck."""
RESTART_S = 0.2
"""Before the second start, and twice as long before each further one."""


class SandboxActivities:
    def __init__(
        self,
        db: Database,
        cache: FactCache,
        node: NodeId,
        held: HeldSandboxes,
        admission: Admission,
    ) -> None:
        self._db = db
        self._cache = cache
        self._node = node
        self._held = held
        self._admission = admission

    @implements(OPEN_SANDBOX)
    async def open_sandbox(self, ask: OpenInput) -> SandboxRef:
        sandbox = SandboxId(f"{ask.rollout.replace('/', '.')}.e{ask.epoch}.s{ask.life}")
        async with self._held.working("opening", ask.rollout, sandbox):
            if sandbox not in self._held:
                with self._admission.opening():
                    await self._start(sandbox, ask)
            backend = self._held.get(sandbox).backend
            await self._say_open(ask, sandbox)
            return SandboxRef(sandbox=sandbox, node=self._node, backend=backend)

    async def _say_open(self, ask: OpenInput, sandbox: SandboxId) -> None:
        phase = RolloutPhase.RUNNING if ask.life == 0 else RolloutPhase.RESTORING
        try:
            await rollouts.set_phase(self._db, ask.rollout, ask.epoch, phase)
        except Fenced:
            # No workflow will ever use it.
            await self._held.close(sandbox)
            raise

    async def _start(self, sandbox: SandboxId, ask: OpenInput) -> None:
        # Not by Temporal's attempts: those count full nodes and killed workers, too.
        for start in range(MAX_STARTS):
            try:
                with self._span("open sandbox", ask, sandbox=sandbox):
                    return await self._held.open(sandbox, ask.rollout, ask.epoch)
            except WorldLost as lost:
                # It was killed as it began, and nothing has run in it: another one will do.
                raise SandboxError(lost.message) from lost
            except SandboxBroken as broken:
                if start + 1 == MAX_STARTS:
                    raise SandboxRefused(broken.message, remedy=broken.remedy) from broken
            await asyncio.sleep(RESTART_S * 2**start)

    @implements(EXECUTE)
    async def execute(self, ask: ExecuteInput) -> ExecuteResult:
        async with self._held.working(f"turn {ask.turn + 1}", ask.rollout, ask.sandbox):
            agent = (await self._cache.rollout(ask.rollout)).agent
            commands = await self._commands(agent, ask)
            done, submitted = await self.run(ask, agent, commands)
            return ExecuteResult(
                returncode=done.returncode,
                timed_out=done.timed_out,
                submitted=submitted,
                num_output_bytes=len(done.output),
                spent_s=done.wall_s,
            )

    async def run(
        self, ask: ExecuteInput, agent: Agent, commands: Sequence[Command]
    ) -> tuple[Execution, bool]:
        """Run one of a turn's commands, once; whether it submits or ends its world. Then the patch
        is stored and the sandbox closed; other turns take a snapshot where one is due."""
        command = commands[ask.index].command
        done = await turns.put_intent(
            self._db, ask.rollout, ask.epoch, ask.turn, ask.index, command
        )
        own = None
        if done is None:
            with self._span("command", ask, call=ask.turn, index=ask.index) as ran:
                result = await self._held.get(ask.sandbox).step(
                    command_id(ask.rollout, ask.epoch, ask.turn, ask.index),
                    command,
                    ask.timeout_s,
                )
                ran.tell(
                    exit_code=result.returncode, timed_out=result.timed_out, wall_s=result.wall_s
                )
            own = Execution(
                call=ask.turn,
                index=ask.index,
                command=command,
                returncode=result.returncode,
                output=result.output,
                truncated=result.truncated,
                timed_out=result.timed_out,
                wall_s=result.wall_s,
                reward=result.reward,
                is_over=result.is_over,
            )
            done = await turns.put_execution(self._db, ask.rollout, ask.epoch, own)
        submitted = done.is_over or agent.is_done(done)
        if submitted:
            await self.collect(ask.rollout, ask.epoch, ask.sandbox)
        # After the last command only, as a restored turn runs none of its commands again.
        # A result of another attempt: another sandbox is the one whose results count.
        elif done == own and ask.index + 1 == len(commands):
            await self._keep_snapshot(ask)
        return done, submitted

    @implements(RESTORE_SANDBOX)
    async def restore_sandbox(self, ask: SandboxInput) -> RestoreResult:
        """Run all recorded commands again, or those after the newest snapshot; each must end,
        print and reward as it did the first time.

        That includes the turn about to be executed when its result was recorded and its node died
        before it could report it: `execute` will not run it again.
        """
        async with self._held.working("replaying", ask.rollout, ask.sandbox) as beat:
            world = self._held.get(ask.sandbox)
            with self._span("restore snapshot", ask, sandbox=ask.sandbox) as restored:
                num_restored = await self._put_back_snapshot(ask, world)
                restored.tell(num_turns=num_restored)
            _, executions = await turns.history(self._db, ask.rollout, ask.epoch)
            agent = (await self._cache.rollout(ask.rollout)).agent_config
            for before in executions:
                if before.call < num_restored:
                    continue
                beat.note = f"replaying turn {before.call + 1} of {executions[-1].call + 1}"
                with self._span("replay command", ask, call=before.call, index=before.index):
                    now = await world.step(
                        command_id(ask.rollout, ask.epoch, before.call, before.index),
                        before.command,
                        agent.command_timeout_s,
                    )
                same_output = _digest(now.output) == _digest(before.output)
                if now.returncode != before.returncode or not same_output:
                    raise SandboxDiverged(
                        f"rollout {ask.rollout}, turn {before.call}: the replay returned "
                        f"{now.returncode} with {'equal' if same_output else 'other'} output, "
                        f"recorded was {before.returncode}"
                    )
                if (now.reward, now.is_over) != (before.reward, before.is_over):
                    raise SandboxDiverged(
                        f"rollout {ask.rollout}, turn {before.call}: the replay gave the reward "
                        f"{now.reward}, recorded was {before.reward}"
                    )
            await rollouts.set_phase(self._db, ask.rollout, ask.epoch, RolloutPhase.RUNNING)
            num_again = sum(each.call >= num_restored for each in executions)
            await self._tell_rebuilt(ask, num_again)
            num_turns = executions[-1].call + 1 if executions else 0
            return RestoreResult(rollout=ask.rollout, epoch=ask.epoch, num_turns=num_turns)

    async def _tell_rebuilt(self, ask: SandboxInput, num_again: int) -> None:
        commands = "1 command" if num_again == 1 else f"{num_again} commands"
        event = events.Event(
            EventKind.SANDBOX_REBUILT,
            ask.rollout,
            f"sandbox of rollout {ask.rollout} rebuilt on node {self._node}: {commands} run again",
            (await self._cache.rollout(ask.rollout)).campaign,
            data={"node": self._node, "num_commands": num_again, "epoch": ask.epoch},
            # A sandbox is restored once, by whichever attempt comes to this.
            key=f"rebuilt/{ask.sandbox}",
        )
        await events.tell(self._db, event)

    @implements(COLLECT_PATCH)
    async def collect_patch(self, ask: SandboxInput) -> PatchResult:
        """For rollouts that end without a submission."""
        async with self._held.working("diff", ask.rollout, ask.sandbox):
            num_bytes = await self.collect(ask.rollout, ask.epoch, ask.sandbox)
            return PatchResult(num_bytes=num_bytes)

    @implements(CLOSE_SANDBOX)
    async def close_sandbox(self, ask: SandboxInput) -> RolloutRef:
        await self._held.close(ask.sandbox)
        return RolloutRef(rollout=ask.rollout, epoch=ask.epoch)

    async def _keep_snapshot(self, ask: ExecuteInput) -> None:
        """Take a snapshot where one is due. The rollout continues without one when that fails."""
        config = (await self._cache.rollout(ask.rollout)).config.sandbox
        num_turns = ask.turn + 1
        if config.snapshot_every_turns is None or num_turns % config.snapshot_every_turns:
            return
        try:
            data = await self._held.get(ask.sandbox).snapshot(
                command_id(ask.rollout, ask.epoch, ask.turn, ask.index),
                config.snapshot_mb << 20,
            )
            if data is not None:
                await snapshots.put(self._db, ask.rollout, ask.epoch, num_turns, data)
        except MainspringError as error:
            activity.logger.warning("%s, turn %d: no snapshot: %s", ask.rollout, ask.turn, error)

    async def _put_back_snapshot(self, ask: SandboxInput, world: HostedWorld) -> int:
        """Turns that need not run again. One that fails is not tried twice."""
        snapshot = await snapshots.newest(self._db, ask.rollout, ask.epoch)
        if snapshot is None:
            return 0
        try:
            await world.restore(snapshot.data)
        except SandboxError as error:
            await snapshots.drop(self._db, ask.rollout)
            raise SandboxLost(
                f"sandbox {ask.sandbox} could not be restored: {error.message}",
                remedy="another one is opened and all commands run again",
            ) from error
        return snapshot.num_turns

    async def collect(self, rollout: RolloutId, epoch: int, sandbox: SandboxId) -> int:
        """Store what the world leaves, then close it: it is done with. Bytes of the patch."""
        patch = await rollouts.get_patch(self._db, rollout, epoch)
        if patch is None:
            finished = await self._held.get(sandbox).finish()
            patch = finished.result
            await rollouts.put_patch(self._db, rollout, epoch, patch, finished.note)
        await self._held.close(sandbox)
        return len(patch)

    def _span(
        self, name: str, of: OpenInput | ExecuteInput | SandboxInput, **more: str | int
    ) -> spans.AnySpan:
        return spans.span(name, rollout=of.rollout, epoch=of.epoch, node=self._node, **more)

    async def _commands(self, agent: Agent, ask: ExecuteInput) -> tuple[Command, ...]:
        """All of the call's."""
        call = await turns.get_call(self._db, ask.rollout, ask.epoch, ask.turn)
        assert call is not None, f"{ask.rollout}, turn {ask.turn}: nothing was generated"
        actions = asked_by(agent, call.text, call.parts)
        place = f"{ask.rollout}, turn {ask.turn}: no command {ask.index}"
        assert not isinstance(actions, FormatError) and ask.index < len(actions), place
        return actions


def _digest(output: bytes) -> str:
    return hashlib.sha256(output).hexdigest()
