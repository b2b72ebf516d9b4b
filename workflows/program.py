"""A program plays a rollout: started in a sandbox, answered call by call, ended at its limits.

Invariants: a life that was lost (sandbox, node, the program killed by the machine, or failed at an
answer that was cut) is followed by another, in a new sandbox, which is answered from the store
until it asks something new; a tree that was lost before its patch was stored is never graded: the
program runs again. State that matters is in Postgres. What it asks is answered by `answering`.
"""

import asyncio

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from mainspring.protocol.program import ProgramLimits, RunProgramResult
    from mainspring.protocol.rollout import BeginResult, RolloutInput
    from mainspring.status import FaultKind, StopReason
    from mainspring.status.fates import OUTAGE_S
    from workflows import activity_calls
    from workflows.answering import Answering
    from workflows.sandbox_life import MAX_LIVES, SandboxLife

MAX_KILLED = 3
"""Times a program that the machine killed is run again; then its tree is graded as it stands."""
MAX_CUT = 3
"""The same of one that failed at an answer that was cut, in a row without a new call: its request
may take longer than it waits, which no other life would mend."""


class ProgramPlay:
    def __init__(self, start: RolloutInput, sandbox: SandboxLife, answering: Answering) -> None:
        self._start = start
        self._sandbox = sandbox
        self._answering = answering

    async def play(self, begin: BeginResult, limits: ProgramLimits, epoch: int) -> StopReason:
        """Until the patch is stored. Raises ActivityError: what cannot be answered or opened, and
        the last loss when lives brought nothing new."""
        self._answering.begin(begin, limits, epoch)
        try:
            return await self._live(begin, epoch)
        finally:
            await self._answering.end()

    async def _live(self, begin: BeginResult, epoch: int) -> StopReason:
        num_killed = num_cut = calls_at_cut = lives_then = calls_then = 0
        while True:
            await self._sandbox.open(epoch, prefer=begin.prefer)
            self._answering.place = self._sandbox.backend
            try:
                is_last = num_killed >= MAX_KILLED or num_cut >= MAX_CUT
                result = await self._one_life(begin, epoch, is_last=is_last)
                activity_calls.raise_if_cancelled()
                if self._answering.num_calls > calls_at_cut:
                    calls_at_cut, num_cut = self._answering.num_calls, 0
                if result.was_cut and self._answering.stop is None and num_cut < MAX_CUT:
                    num_cut += 1
                    await self._sandbox.close(epoch)
                    continue
                if result.was_killed and self._answering.stop is None and num_killed < MAX_KILLED:
                    num_killed += 1
                    await self._sandbox.close(epoch)
                    continue
                await self._answering.end()
                await self._sandbox.collect_once(epoch)
                ended = StopReason.CONTEXT_FULL if result.was_full else StopReason.EXITED
                return self._answering.stop or ended
            except ActivityError as error:
                activity_calls.raise_if_cancelled()
                if self._answering.num_calls > calls_then:
                    calls_then, lives_then = self._answering.num_calls, self._sandbox.lives - 1
                # A stop that no process of the node took on tells nothing of the program: it may
                # still run, and only a new sandbox is sure to be without it.
                is_untold = is_cancelled_exception(error)
                is_lost = is_untold or activity_calls.fault_of(error) is FaultKind.SANDBOX_LOST
                if is_lost and self._sandbox.lives - lives_then < MAX_LIVES:
                    await self._sandbox.leave(epoch, error)
                    continue
                if not is_untold:
                    raise
                raise ApplicationError(
                    f"rollout {self._start.rollout}: no process of its node stopped the program",
                    type=FaultKind.SANDBOX_LOST,
                    non_retryable=True,
                ) from error

    async def _one_life(self, begin: BeginResult, epoch: int, *, is_last: bool) -> RunProgramResult:
        """Run the program until it ends or is to be ended. `is_last`: no other life follows one
        that is killed or cut."""
        started = self._answering.begin_life()
        running = asyncio.create_task(
            self._sandbox.run_program(
                epoch,
                timeout_s=begin.rollout_timeout_s + OUTAGE_S,
                is_last=is_last,
                summary=f"program, life {self._sandbox.lives}",
            )
        )
        try:
            await self._answering.until_over(running.done, started, begin.rollout_timeout_s)
            if self._answering.failure is not None:
                raise self._answering.failure
            if not running.done():
                running.cancel()  # the activity stops the program and tells how it ended
            return await running
        finally:
            running.cancel()
