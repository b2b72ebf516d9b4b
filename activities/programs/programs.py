"""Programs on their node: started once for each life, given a model port, waited for, stopped.

Invariants: a life's program is started once, whichever process of the node asks; the next process
joins it and opens its port again, with a new key; it is stopped when its workflow asks for that,
and at no other time, also not when this process drains; its end is stored before it is told.
"""

import asyncio
import time

import structlog
from temporalio import activity

from activities.implements import implements
from activities.programs.function_lives import FunctionLives
from activities.programs.program_start import ask_of, note_bundle
from infra.db.cache import FactCache
from infra.db.database import Database
from infra.db.programs import answer_receipts, model_requests, program_lives
from infra.environments.swe import SweWorld
from infra.sandbox.model_port import Gateways
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.run import RunConfig
from mainspring.environments.protocol import CommandResult
from mainspring.errors import ConfigError, MainspringError, SandboxError
from mainspring.ids import program_id
from mainspring.programs.last_words import filled_context
from mainspring.programs.profile import Profile
from mainspring.programs.profiles.choice import profile_for
from mainspring.programs.profiles.function import FunctionProfile
from mainspring.programs.starting import script
from mainspring.protocol.activities import RUN_PROGRAM
from mainspring.protocol.program import RunProgramInput, RunProgramResult
from mainspring.status import FaultKind
from mainspring.tasks.any_task import AnyTask
from mainspring.tasks.swe_task import SWE
from mainspring.words.causes import shortened
from mainspring.words.plain_text import plain
from node.held_sandboxes import HeldSandboxes

KILLED = (137, -9)
"""SIGKILL, as bash and Python tell it: the kernel's or a person's doing, not the program's."""
STOP_S = 30.0
"""Between a stop and the program's end."""
NOTED_S = 2.0
"""Within which a gateway notes the answer that a client has, and after which that one may end."""
TOLD_CHARS = 300
log = structlog.get_logger()


class ProgramSilent(MainspringError):
    """The program ended, and no request of it was answered."""

    fault = FaultKind.PROGRAM_SILENT


class ProgramActivities:
    def __init__(
        self,
        db: Database,
        cache: FactCache,
        held: HeldSandboxes,
        gateways: Gateways,
        functions: FunctionLives,
    ) -> None:
        self._db = db
        self._cache = cache
        self._held = held
        self._gateways = gateways
        self._functions = functions

    @implements(RUN_PROGRAM)
    async def run_program(self, ask: RunProgramInput) -> RunProgramResult:
        async with self._held.working("program", ask.rollout, ask.sandbox):
            facts = await self._cache.rollout(ask.rollout)
            config, task, agent = facts.config, facts.task, facts.agent_config
            profile = profile_for(agent)
            world = self._held.get(ask.sandbox)
            is_function = isinstance(profile, FunctionProfile)
            if is_function and not profile.needs_sandbox and task.kind != SWE:
                return await self._functions.play(ask, facts, profile, None)
            if not isinstance(world, SweWorld):
                raise ConfigError(
                    f"task {task.id} has no sandbox, and the program {agent.kind!r} needs one",
                    remedy='choose tasks of the kind "swe", or an agent',
                )
            if is_function:
                return await self._functions.play(ask, facts, profile, world)
            command = _command(profile, config, task)
            key = await program_lives.begin(self._db, ask.rollout, ask.epoch, ask.life)
            await note_bundle(self._db, ask, agent)
            await world.open_model_port(self._gateways, key)
            name = program_id(ask.rollout, ask.epoch, ask.life)
            result, was_stopped = await self._ended(world, name, command, ask.timeout_s)
            # What it left behind would ask on.
            await world.stop(name)
            await world.close_model_port()
            output = result.output.decode(errors="replace")
            await program_lives.end(
                self._db, ask.rollout, ask.epoch, ask.life, result.returncode, output
            )
            was_killed = not was_stopped and result.returncode in KILLED
            was_full = False
            if was_stopped:
                await self._refuse_idle(ask, agent, output)
                was_cut = False
            else:
                was_full = not was_killed and await self._was_full(ask, result.returncode, output)
                was_cut = not was_killed and await self._was_cut(ask, result.returncode)
                if ask.is_last or not (was_killed or was_cut):
                    await self._refuse_silent(ask, agent, result.returncode, output)
            return RunProgramResult(
                returncode=result.returncode,
                was_killed=was_killed,
                was_stopped=was_stopped,
                was_cut=was_cut,
                was_full=was_full,
            )

    async def _ended(
        self, world: SweWorld, name: str, command: str, timeout_s: float
    ) -> tuple[CommandResult, bool]:
        """How the program ended, and whether it was stopped."""
        running = asyncio.ensure_future(world.step(name, command, timeout_s))
        try:
            result = await asyncio.shield(running)
        except asyncio.CancelledError:
            details = activity.cancellation_details()
            if details is None or not details.cancel_requested:
                running.cancel()
                raise  # this process drains: the program runs on, and the next one joins it
            await world.stop(name)
            try:
                async with asyncio.timeout(STOP_S):
                    return await running, True
            except TimeoutError:
                raise SandboxError(
                    f"program {name} did not end within {STOP_S:g} s after it was stopped"
                ) from None
        return result, result.timed_out

    async def _was_cut(self, ask: RunProgramInput, returncode: int) -> bool:
        """Some clients end at once when a gateway dies under an answer. One that succeeded may
        have left a request on purpose."""
        if returncode == 0:
            return False
        until = time.monotonic() + NOTED_S
        while await answer_receipts.is_owed(self._db, ask.rollout, ask.epoch, ask.life):
            if time.monotonic() > until:
                return True
            await asyncio.sleep(NOTED_S / 10)
        return False

    async def _was_full(self, ask: RunProgramInput, returncode: int, output: str) -> bool:
        """Clients that print no JSON fail at a prompt that is refused as too long."""
        if filled_context(output):
            return True
        if returncode == 0:
            return False
        return await model_requests.ended_too_long(self._db, ask.rollout, ask.epoch, ask.life)

    async def _refuse_silent(
        self, ask: RunProgramInput, agent: AgentConfig, returncode: int, output: str
    ) -> None:
        """Raises ProgramSilent: a reward for what the policy had no part in would be noise."""
        if await model_requests.answered(self._db, ask.rollout, ask.epoch):
            return
        raise ProgramSilent(
            f"rollout {ask.rollout}: the program {agent.kind!r} ended with exit code "
            f"{returncode}{_why(returncode)} before a request of it was answered; it printed: "
            f"{_told(output)}"
        )

    async def _refuse_idle(self, ask: RunProgramInput, agent: AgentConfig, output: str) -> None:
        """Raises ProgramSilent for one that was stopped and had asked nothing; what had, may have
        been stopped before its first reply was stored."""
        if await model_requests.asked(self._db, ask.rollout, ask.epoch):
            return
        raise ProgramSilent(
            f"rollout {ask.rollout}: the program {agent.kind!r} was stopped at a limit "
            f"before it asked anything; it printed: {_told(output)}"
        )


def _why(returncode: int) -> str:
    """Note on a return code that shells use for an end of another's making; else empty."""
    return " (killed, as for memory beyond sandbox.memory_mb)" if returncode in KILLED else ""


def _told(output: str) -> str:
    return shortened(" ".join(plain(output).split()), TOLD_CHARS) or "nothing"


def _command(profile: Profile, config: RunConfig, task: AnyTask) -> str:
    return script(profile.launch(ask_of(config, task)))
