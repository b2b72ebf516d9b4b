"""Functions that play, one life after another: called beside their node, stored, told.

Invariants: a life's function is called once and by one attempt, which no other takes over: a life
that was begun and has no end is lost, and the workflow begins another; what a function returned is
stored before its end is; a life that ended is told again as it ended. Used by the activity that
runs programs.
"""

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from temporalio import activity

from activities.programs.program_start import ask_of, note_bundle
from infra.db.cache import RolloutFacts
from infra.db.database import Database
from infra.db.programs import model_requests, program_lives
from infra.db.programs.program_lives import ProgramLife
from infra.db.rollouts import rollouts
from infra.environments.swe import SweWorld
from infra.functions import process
from infra.functions.labelled import kill_left, label_of
from infra.functions.messages import Start
from infra.functions.process import FunctionEnd, FunctionProcess
from infra.sandbox.model_port import MAX_CONNECTIONS, Gateways, ModelPort, Route
from infra.stack.ports import LOOPBACK
from mainspring.config.run import RunConfig
from mainspring.environments.choice import OF_FUNCTIONS, environment_of
from mainspring.environments.protocol import CommandResult, WorldLost
from mainspring.ids import program_id
from mainspring.programs.functions import FunctionFailed, require_number, visible
from mainspring.programs.profiles.function import FunctionProfile
from mainspring.protocol.program import RunProgramInput, RunProgramResult
from mainspring.tasks.any_task import AnyTask
from node.held_sandboxes import HeldSandboxes

STOPPED = 124
"""In the place of an exit code: the workflow or the last bound ended it."""
KILLED = -9
ERROR_CHARS = 500


class FunctionLives:
    def __init__(self, db: Database, held: HeldSandboxes, folder: Path, gateways: Gateways) -> None:
        """`folder`: of this node alone, for what functions write while they run."""
        self._db = db
        self._held = held
        self._folder = folder
        self._owner = str(folder.absolute())
        self._gateways = gateways

    async def clear_left(self) -> None:
        """Remove what a process of this node left that could not end its functions."""
        await asyncio.to_thread(kill_left, self._owner)
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def play(
        self,
        ask: RunProgramInput,
        facts: RolloutFacts,
        profile: FunctionProfile,
        world: SweWorld | None,
    ) -> RunProgramResult:
        """One life, to its end. `world`: of a task with a repository. Raises WorldLost, where
        another life is to be begun, and FunctionFailed."""
        if world is None and await self._has_result(ask):
            return RunProgramResult(returncode=0)  # of a life that was lost before it told
        key_or_life = await program_lives.begin_once(self._db, ask.rollout, ask.epoch, ask.life)
        if isinstance(key_or_life, ProgramLife):
            if key_or_life.returncode is None:
                raise WorldLost(
                    f"rollout {ask.rollout}: the function of life {ask.life} ended with the "
                    "attempt that called it"
                )
            code, output = key_or_life.returncode, key_or_life.output or ""
        else:
            code, output = await self._lived(ask, facts, profile, world, key=key_or_life)
        return await self._told(ask, profile, code, output)

    async def _has_result(self, ask: RunProgramInput) -> bool:
        return await rollouts.get_patch(self._db, ask.rollout, ask.epoch) is not None

    async def _lived(
        self,
        ask: RunProgramInput,
        facts: RolloutFacts,
        profile: FunctionProfile,
        world: SweWorld | None,
        *,
        key: str,
    ) -> tuple[int, str]:
        """Exit code and output, which are stored."""
        config, task, agent = facts.config, facts.task, facts.agent_config
        # The client of an installed agent is one command, and ends with its rollout.
        longest_s = ask.timeout_s if profile.asks_inside else agent.command_timeout_s
        sandbox = _Commands(ask, longest_s, world) if world is not None else None
        await note_bundle(self._db, ask, agent)
        name = program_id(ask.rollout, ask.epoch, ask.life)
        inside = world if profile.asks_inside else None
        async with self._model_port(name, key) as port, self._model_port_in(inside, key):
            start = Start(
                path=profile.path,
                task=visible(task).model_dump(mode="json"),
                model_url=f"http://{LOOPBACK}:{port}/s/{key}/v1",
                key=key,
                options=profile.options_for(ask_of(config, task)),
                rollout=ask.rollout,
                life=ask.life,
                has_sandbox=sandbox is not None,
                memory_mb=config.sandbox.memory_mb,
            )
            async with process.running(
                start,
                profile.variables,
                label_of(self._owner, name),
                self._folder,
                sandbox.run if sandbox else None,
            ) as function:
                with self._held.beside(ask.sandbox, function.close):
                    end = await _ended(function, ask.timeout_s)
                if ask.sandbox not in self._held:
                    raise WorldLost(f"sandbox {ask.sandbox} was closed under its function")
            # What it left running in the sandbox would change the tree.
            if sandbox is not None:
                await sandbox.stop()
            output = await function.output()
        if world is None and end.result is not None:
            end = await self._stored(ask, config, task, end)
        if end.error:
            output = f"{output.rstrip()}\n{' '.join(end.error.split())[:ERROR_CHARS]}".lstrip()
        await program_lives.end(self._db, ask.rollout, ask.epoch, ask.life, end.returncode, output)
        return end.returncode, output

    async def _stored(
        self, ask: RunProgramInput, config: RunConfig, task: AnyTask, end: FunctionEnd
    ) -> FunctionEnd:
        assert end.result is not None, "a function without a result has nothing to store"
        if environment_of(config, task) == OF_FUNCTIONS:
            try:
                require_number(end.result)
            except ValueError as error:
                return FunctionEnd(1, error=str(error))
        await rollouts.put_patch(self._db, ask.rollout, ask.epoch, end.result.data)
        return end

    async def _told(
        self, ask: RunProgramInput, profile: FunctionProfile, code: int, output: str
    ) -> RunProgramResult:
        """Raises FunctionFailed."""
        if code == STOPPED and await model_requests.asked(self._db, ask.rollout, ask.epoch):
            return RunProgramResult(returncode=code, was_stopped=True)
        if code == KILLED and not ask.is_last:
            return RunProgramResult(returncode=code, was_killed=True)
        remedy = ""
        if code == STOPPED:
            how = "was stopped at a limit before it asked anything"
            remedy = "let it ask the model at `model_url`, and look at what it printed"
        elif code == 0:
            if await model_requests.answered(self._db, ask.rollout, ask.epoch):
                # The exit code of a client inside is not known: its end is its last request's.
                was_full = profile.asks_inside and await model_requests.ended_too_long(
                    self._db, ask.rollout, ask.epoch, ask.life
                )
                return RunProgramResult(returncode=code, was_full=was_full)
            # A reward for what the policy had no part in would be noise.
            how = "returned before a request of it was answered"
            remedy = "let it ask the model at `model_url`, and look at what it printed"
        elif await model_requests.ended_too_long(self._db, ask.rollout, ask.epoch, ask.life):
            # That is the policy's doing.
            return RunProgramResult(returncode=code, was_full=True)
        else:
            how = output.rstrip().rpartition("\n")[2]
            if code == KILLED:
                remedy = "it was killed in each of its lives: look at the memory of its node"
        raise FunctionFailed(f"rollout {ask.rollout}: {profile.title} {how}", remedy=remedy)

    @asynccontextmanager
    async def _model_port(self, owner: str, key: str) -> AsyncIterator[int]:
        """At this machine's loopback, where others may ask too: so the key is the function's."""
        listener = socket.create_server((LOOPBACK, 0), backlog=MAX_CONNECTIONS)
        port = ModelPort(Route(self._gateways, key, is_told=False), owner)
        port.serve(listener)
        try:
            yield listener.getsockname()[1]
        finally:
            await asyncio.shield(port.close())

    @asynccontextmanager
    async def _model_port_in(self, world: SweWorld | None, key: str) -> AsyncIterator[None]:
        """For a client that runs in the sandbox; None: there is none."""
        if world is None:
            yield
            return
        await world.open_model_port(self._gateways, key)
        try:
            yield
        finally:
            await asyncio.shield(world.close_model_port())


async def _ended(function: FunctionProcess, timeout_s: float) -> FunctionEnd:
    """Raises CancelledError when this process drains: the next attempt begins another life."""
    try:
        async with asyncio.timeout(timeout_s):
            return await function.ended()
    except TimeoutError:
        return FunctionEnd(STOPPED, error="was stopped at its last bound")
    except asyncio.CancelledError:
        details = activity.cancellation_details()
        if details is None or not details.cancel_requested:
            raise
        return FunctionEnd(STOPPED, error="was stopped at a limit of its rollout, or by a cancel")


class _Commands:
    """Commands of one life, in the rollout's sandbox."""

    def __init__(self, ask: RunProgramInput, longest_s: float, world: SweWorld) -> None:
        self._name = program_id(ask.rollout, ask.epoch, ask.life)
        self._longest_s = longest_s
        self._world = world
        self._one_runs = asyncio.Lock()
        self._newest: str | None = None

    async def run(self, number: int, command: str, timeout_s: float | None) -> CommandResult:
        step = f"{self._name}.c{number}"
        bound = self._longest_s if timeout_s is None else min(timeout_s, self._longest_s)
        # One at a time reaches the sandbox: what waits there could not be taken back.
        async with self._one_runs:
            self._newest = step
            return await self._world.step(step, command, bound)

    async def stop(self) -> None:
        """The one that the function did not wait for, and what all of them left running."""
        if self._newest is not None:
            await self._world.stop(self._newest)
