"""A rollout's sandbox as its workflow sees it: opened, used, rebuilt when lost, closed.

Invariant 6: a lost sandbox is rebuilt by replaying the recorded commands and the rollout continues
at the same turn. Invariant 7: the workflow calls `close` on every end but a termination.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from mainspring.ids import NodeId, SandboxId
    from mainspring.protocol.activities import (
        CLOSE_SANDBOX,
        COLLECT_PATCH,
        EXECUTE,
        OPEN_SANDBOX,
        PLAY_TURNS,
        RESTORE_SANDBOX,
        RUN_PROGRAM,
    )
    from mainspring.protocol.program import RunProgramInput, RunProgramResult
    from mainspring.protocol.rollout import (
        ExecuteInput,
        ExecuteResult,
        OpenInput,
        PatchResult,
        PlayInput,
        PlayResult,
        RolloutInput,
        SandboxInput,
        SandboxRef,
    )
    from mainspring.protocol.timeouts import SHELL_GRACE_S
    from mainspring.status import FaultKind
    from workflows import activity_calls

Out = TypeVar("Out")

MAX_LIVES = 8
"""Sandboxes one rollout may use up without a turn that is new; beyond that the fleet is sick, not
the sandbox. Machines that live for minutes cost a long rollout many more."""
CLOSE_BESIDE = "close-beside"
"""Patch: what a dead node held is closed beside the opening of the next sandbox."""
RESULT_HOPS = 10
"""Turns of the event loop in which a resolved activity surely reaches its awaiting task."""


class SandboxLife:
    def __init__(self, start: RolloutInput) -> None:
        self._rollout = start.rollout
        self._ref: SandboxRef | None = None
        self.lives = 0
        self._num_turns = 0
        """Stored when a sandbox was restored last."""
        self._lives_then = 0
        """And how many sandboxes had been used up when that number grew last."""
        self._closing: set[asyncio.Task[None]] = set()
        """Closes that a dead node must hear of, should it come back."""
        self.seconds: dict[str, float] = {}
        """Wall time by phase, for the rollout's record."""

    @property
    def is_open(self) -> bool:
        return self._ref is not None

    @property
    def backend(self) -> str:
        return self._ref.backend if self._ref else "-"

    async def open(self, epoch: int, *, prefer: NodeId | None = None) -> None:
        """On the node `prefer` if that has room, for the first sandbox; else on any."""
        started = workflow.time()
        opening = asyncio.create_task(
            self._open(
                OpenInput(rollout=self._rollout, epoch=epoch, life=self.lives),
                prefer if self.lives == 0 else None,
                summary=f"sandbox {self.lives + 1}",
            )
        )
        try:
            self._ref = await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The sandbox may have opened in the same activation. Let that result pass through the
            # SDK's tasks before cancelling, which would lose it and leak the sandbox.
            for _ in range(RESULT_HOPS):
                await asyncio.sleep(0)
            opening.cancel()
            [opened] = await asyncio.gather(opening, return_exceptions=True)
            self._ref = None if isinstance(opened, BaseException) else opened
            raise
        self.lives += 1
        self._spent("open", started)

    async def _open(self, ask: OpenInput, prefer: NodeId | None, *, summary: str) -> SandboxRef:
        if prefer is not None:
            try:
                return await activity_calls.once_on(prefer, OPEN_SANDBOX, ask, summary=summary)
            except ActivityError:
                activity_calls.raise_if_cancelled()
        return await activity_calls.anywhere(OPEN_SANDBOX, ask, summary=summary)

    async def execute(
        self, epoch: int, turn: int, index: int, *, timeout_s: float, summary: str
    ) -> ExecuteResult:
        """Run command `index` of a turn, in a rebuilt sandbox if need be. A submission closes it.

        Raises ActivityError: SandboxDiverged, or the last loss when MAX_LIVES brought nothing new.
        """

        async def run(ref: SandboxRef) -> ExecuteResult:
            return await activity_calls.on_node(
                EXECUTE,
                ExecuteInput(
                    rollout=self._rollout,
                    epoch=epoch,
                    turn=turn,
                    index=index,
                    sandbox=ref.sandbox,
                    timeout_s=timeout_s,
                ),
                node=ref.node,
                own_s=timeout_s,
                summary=summary,
            )

        started, result = await self._used(run, epoch, turn, timeout_s)
        if result.submitted:
            self._ref = None
        activity_calls.raise_if_cancelled()
        self._spent("execute", started)
        return result

    async def play(
        self, ask: Callable[[SandboxId], PlayInput], *, own_s: float, summary: str
    ) -> PlayResult:
        """Play several turns, in a rebuilt sandbox if need be. The last of them closes it.

        Raises ActivityError as `execute`, and for replies that cannot be had.
        """

        async def run(ref: SandboxRef) -> PlayResult:
            return await activity_calls.on_node(
                PLAY_TURNS, ask(ref.sandbox), node=ref.node, own_s=own_s, summary=summary
            )

        request = ask(SandboxId(""))
        num_turns = request.tally.num_turns + request.num_turns
        started, result = await self._used(run, request.epoch, num_turns, request.command_timeout_s)
        if result.is_closed:
            self._ref = None
        activity_calls.raise_if_cancelled()
        for phase, spent_s in (("execute", result.execute_s), ("diff", result.collect_s)):
            if spent_s:
                self._add(phase, spent_s)
        # What is no command is a reply, or the wait for one.
        in_sandbox_s = result.execute_s + result.collect_s
        self._add("generate", max(0.0, workflow.time() - started - in_sandbox_s))
        return result

    async def _used(
        self,
        use: Callable[[SandboxRef], Awaitable[Out]],
        epoch: int,
        num_turns: int,
        timeout_s: float,
    ) -> tuple[float, Out]:
        """When the use that succeeded began, and what it gave. Before it the sandbox is rebuilt
        where it was lost: a rollout of at most `num_turns`, each of `timeout_s`."""
        while True:
            ref = self._alive()
            started = workflow.time()
            try:
                return started, await use(ref)
            except ActivityError as error:
                activity_calls.raise_if_cancelled()
                await self._rebuild_after(error, epoch, num_turns, timeout_s)

    async def collect_patch(self, epoch: int, num_turns: int, *, timeout_s: float) -> PatchResult:
        """Store what the tree holds, in a rebuilt sandbox if need be; closes the sandbox."""
        while True:
            ref = self._alive()
            started = workflow.time()
            try:
                result = await activity_calls.on_node(
                    COLLECT_PATCH,
                    SandboxInput(rollout=self._rollout, epoch=epoch, sandbox=ref.sandbox),
                    node=ref.node,
                )
            except ActivityError as error:
                await self._rebuild_after(error, epoch, num_turns, timeout_s)
                continue
            self._spent("diff", started)
            self._ref = None
            return result

    async def run_program(
        self, epoch: int, *, timeout_s: float, is_last: bool, summary: str
    ) -> RunProgramResult:
        """The program's life in this sandbox, to its end. Raises ActivityError."""
        ref = self._alive()
        started = workflow.time()
        result = await activity_calls.on_node(
            RUN_PROGRAM,
            RunProgramInput(
                rollout=self._rollout,
                epoch=epoch,
                sandbox=ref.sandbox,
                life=self.lives - 1,
                timeout_s=timeout_s,
                is_last=is_last,
            ),
            node=ref.node,
            own_s=timeout_s,
            summary=summary,
        )
        self._spent("program", started)
        return result

    async def collect_once(self, epoch: int) -> PatchResult:
        """Store what the tree holds and close the sandbox. Raises ActivityError when it is lost:
        nothing here brings back what a program did."""
        ref = self._alive()
        started = workflow.time()
        result = await activity_calls.on_node(
            COLLECT_PATCH,
            SandboxInput(rollout=self._rollout, epoch=epoch, sandbox=ref.sandbox),
            node=ref.node,
        )
        self._spent("diff", started)
        self._ref = None
        return result

    async def leave(self, epoch: int, error: ActivityError) -> None:
        """Give up the sandbox that was lost with `error`."""
        if activity_calls.is_dead_node(error):
            self._close_beside(epoch)
        else:
            await self.close(epoch)

    async def close(self, epoch: int) -> None:
        """Remove the sandbox; one that cannot be removed now is left to its node's reaper."""
        if self._ref is None:
            return
        ref, self._ref = self._ref, None
        await self._close(ref, epoch)

    async def _close(self, ref: SandboxRef, epoch: int) -> None:
        try:
            await activity_calls.on_node(
                CLOSE_SANDBOX,
                SandboxInput(rollout=self._rollout, epoch=epoch, sandbox=ref.sandbox),
                node=ref.node,
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            if activity_calls.fault_of(error) is not FaultKind.SANDBOX_LOST:
                workflow.logger.warning("left to the reaper: %s", activity_calls.fault_text(error))

    async def _rebuild_after(
        self, error: ActivityError, epoch: int, num_turns: int, timeout_s: float
    ) -> None:
        """Bring a new sandbox to where the lost one was. Raises `error` when it was no loss."""
        while True:
            if (
                activity_calls.fault_of(error) is not FaultKind.SANDBOX_LOST
                or self.lives - self._lives_then >= MAX_LIVES
            ):
                raise error
            if activity_calls.is_dead_node(error) and workflow.patched(CLOSE_BESIDE):
                self._close_beside(epoch)
            else:
                await self.close(epoch)
            await self.open(epoch)
            ref = self._alive()
            started = workflow.time()
            try:
                restored = await activity_calls.on_node(
                    RESTORE_SANDBOX,
                    SandboxInput(rollout=self._rollout, epoch=epoch, sandbox=ref.sandbox),
                    node=ref.node,
                    own_s=timeout_s + num_turns * (timeout_s + SHELL_GRACE_S),
                    summary=f"replay {num_turns} commands",
                )
            except ActivityError as again:
                error = again
                continue
            self._spent("restore", started)
            # This sandbox counts: it has shown nothing new yet.
            if restored.num_turns > self._num_turns:
                self._num_turns, self._lives_then = restored.num_turns, self.lives - 1
            return

    def _close_beside(self, epoch: int) -> None:
        """A dead node's queue holds the close until its own timeout: no sandbox waits for that."""
        ref, self._ref = self._alive(), None
        closing = asyncio.create_task(self._close(ref, epoch))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _alive(self) -> SandboxRef:
        assert self._ref is not None, "the sandbox is used before it is open"
        return self._ref

    def _spent(self, phase: str, started: float) -> None:
        self._add(phase, workflow.time() - started)

    def _add(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds
