"""A program plays a rollout: started in a sandbox, answered call by call, ended at its limits.

Invariants: a request is answered by one activity, however often it is told of; a life that was lost
(sandbox, node, or the program killed by the machine) is followed by another, in a new sandbox,
which is answered from the store until it asks something new; a tree that was lost before its patch
was stored is never graded: the program runs again. State that matters is in Postgres.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from temporalio import workflow
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    FailureError,
    is_cancelled_exception,
)

with workflow.unsafe.imports_passed_through():
    from mainspring.fates import OUTAGE_S
    from mainspring.programs.record import RequestState
    from mainspring.protocol.activities import ANSWER_CALL
    from mainspring.protocol.program import (
        AnswerInput,
        AnswerResult,
        ProgramLimits,
        RunProgramResult,
    )
    from mainspring.protocol.rollout import BeginResult, RolloutInput
    from mainspring.status import FaultKind, StopReason
    from workflows import activity_calls
    from workflows.sandbox_life import MAX_LIVES, SandboxLife

MAX_KILLED = 3
"""Times a program that the machine killed is run again; then its tree is graded as it stands."""
MINUTE_S = 60.0


class ProgramPlay:
    def __init__(self, start: RolloutInput, sandbox: SandboxLife) -> None:
        self._start = start
        self._sandbox = sandbox
        self._begin: BeginResult | None = None
        self._epoch = 0
        self._early: list[tuple[int, int | None]] = []
        """Requests told of before the program is known to play, with their epochs."""
        self._listens = True
        """False from the end of the last life on: what is asked then has no asker any more."""
        self._answering: dict[int, asyncio.Task[None]] = {}
        self._answered: set[int] = set()
        self._refused: set[int] = set()
        """Of those, the ones that had no reply."""
        self._num_refused_again = 0
        """Times that these were asked again: each counts as a call."""
        self._times: deque[float] = deque()
        """Of the requests of the last minute."""
        self._stop: StopReason | None = None
        """Why this life is to end."""
        self._limit: StopReason | None = None
        """The limit that was reached, in this life or an earlier one."""
        self._failure: BaseException | None = None
        self._idle_until = 0.0
        """Up to when time was counted as waited or as used."""
        self._waited_s = 0.0
        """For engines that did not answer; no time of the rollout."""
        self.generate_s = 0.0

    @property
    def num_calls(self) -> int:
        return len(self._answered)

    def ask(self, number: int, epoch: int | None) -> None:
        """The program asks `number`, now or again. A reset brings the signals of earlier epochs
        again, whose numbers are of other requests. None: a gateway that tells no epoch."""
        if self._begin is None or self._begin.program is None:
            self._early.append((number, epoch))
        elif epoch not in (None, self._epoch) or not self._listens:
            return
        elif number not in self._answered and number not in self._answering:
            self._accept(number, self._begin, self._begin.program)

    def ask_again(self, number: int, epoch: int | None) -> None:
        """The same life asks `number` again. The gateway answers what is stored, and there is no
        activity: without a bound a program could ask for it without end."""
        begin = self._begin
        known = number in self._answered or number in self._answering
        if begin is None or begin.program is None or not known:
            self.ask(number, epoch)
        elif epoch in (None, self._epoch) and self._listens:
            self._num_refused_again += number in self._refused
            self._is_admitted(begin, begin.program, num_new=0)

    def _accept(self, number: int, begin: BeginResult, limits: ProgramLimits) -> None:
        if self._is_admitted(begin, limits, num_new=1):
            self._answering[number] = asyncio.create_task(self._answer(number, begin, limits))

    def _is_admitted(self, begin: BeginResult, limits: ProgramLimits, *, num_new: int) -> bool:
        """Count one request more, and `num_new` calls; past a limit this life is to end."""
        now = workflow.time()
        self._times.append(now)
        while self._times[0] < now - MINUTE_S:
            self._times.popleft()
        if self._limit is None:
            num_known = len(self._answered) + len(self._answering) + self._num_refused_again
            if num_known + num_new > begin.step_limit:
                self._limit = StopReason.STEP_LIMIT
            elif len(self._times) > limits.requests_per_minute:
                self._limit = StopReason.REQUEST_RATE
        if self._limit is not None:
            self._stop = self._limit
        return self._limit is None

    async def play(self, begin: BeginResult, limits: ProgramLimits, epoch: int) -> StopReason:
        """Until the patch is stored. Raises ActivityError: what cannot be answered or opened, and
        the last loss when lives brought nothing new."""
        self._begin, self._epoch = begin, epoch
        self._room = asyncio.Semaphore(limits.parallel_requests)
        early, self._early = self._early, []
        for number, of_epoch in early:
            self.ask(number, of_epoch)
        try:
            return await self._live(begin, epoch)
        finally:
            self._listens = False
            await self._abandon()

    async def _live(self, begin: BeginResult, epoch: int) -> StopReason:
        num_killed = lives_then = calls_then = 0
        while True:
            await self._sandbox.open(epoch, prefer=begin.prefer)
            try:
                result = await self._one_life(begin, is_last=num_killed >= MAX_KILLED)
                activity_calls.raise_if_cancelled()
                if result.was_killed and self._stop is None and num_killed < MAX_KILLED:
                    num_killed += 1
                    await self._sandbox.close(epoch)
                    continue
                self._listens = False
                await self._abandon()
                await self._sandbox.collect_once(epoch)
                return self._stop or StopReason.EXITED
            except ActivityError as error:
                activity_calls.raise_if_cancelled()
                if self.num_calls > calls_then:
                    calls_then, lives_then = self.num_calls, self._sandbox.lives - 1
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

    async def _one_life(self, begin: BeginResult, *, is_last: bool) -> RunProgramResult:
        """Run the program until it ends or is to be ended. `is_last`: no other life follows one
        that is killed."""
        self._stop = None
        self._listens = True
        self._waited_s = 0.0
        started = self._idle_until = workflow.time()
        running = asyncio.create_task(
            self._sandbox.run_program(
                self._epoch,
                timeout_s=begin.rollout_timeout_s + OUTAGE_S,
                is_last=is_last,
                summary=f"program, life {self._sandbox.lives}",
            )
        )
        try:
            await self._until_over(running, started, begin.rollout_timeout_s)
            if self._failure is not None:
                raise self._failure
            if not running.done():
                running.cancel()  # the activity stops the program and tells how it ended
            return await running
        finally:
            running.cancel()

    async def _abandon(self) -> None:
        """Requests that nothing waits for any more. Those of a life that was lost are not: the next
        life asks them again."""
        under_way = [*self._answering.values()]
        for answering in under_way:
            answering.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    async def _until_over(
        self, running: asyncio.Task[RunProgramResult], started: float, limit_s: float
    ) -> None:
        def is_over() -> bool:
            return running.done() or self._stop is not None or self._failure is not None

        while not is_over():
            left_s = limit_s - (workflow.time() - started - self._waited_s)
            if left_s <= 0:
                # What an engine's outage took is known when the reply has come.
                await self._until_answered(is_over)
                if workflow.time() - started - self._waited_s >= limit_s and not is_over():
                    self._limit = self._limit or StopReason.WALL_TIME
                    self._stop = self._limit
                continue
            try:
                await workflow.wait_condition(is_over, timeout=left_s)
            except TimeoutError:
                continue

    async def _until_answered(self, is_over: Callable[[], bool]) -> None:
        """All that is under way now; not what is asked meanwhile."""
        under_way = set(self._answering)
        await workflow.wait_condition(lambda: is_over() or not under_way & set(self._answering))

    async def _answer(self, number: int, begin: BeginResult, limits: ProgramLimits) -> None:
        try:
            async with self._room:
                began = workflow.time()
                result = await self._reply(number, begin)  # also one that came after a cancel
            self._count(began, result.spent_s)
            self._answered.add(number)
            if result.state is RequestState.REFUSED:
                self._refused.add(number)
            if result.state is RequestState.STORED:
                workflow.set_current_details(
                    f"call **{self.num_calls}** of {begin.step_limit}, "
                    f"{result.num_prompt_tokens + result.num_completion_tokens} tokens, "
                    f"{self._sandbox.backend}: {result.summary}"
                )
        except FailureError as error:
            if not is_cancelled_exception(error):  # else it was abandoned, and nothing failed
                self._failure = self._failure or error
        finally:
            self._answering.pop(number, None)

    async def _reply(self, number: int, begin: BeginResult) -> AnswerResult:
        return await activity_calls.anywhere(
            ANSWER_CALL,
            AnswerInput(
                rollout=self._start.rollout,
                epoch=self._epoch,
                number=number,
                min_policy_version=self._start.min_policy_version,
            ),
            own_s=begin.request_timeout_s,
            summary=f"call {number + 1}",
        )

    def _count(self, began: float, spent_s: float) -> None:
        """Time in which requests only waited; what overlaps counts once."""
        now = workflow.time()
        self.generate_s += now - began
        since = max(began, self._idle_until)
        self._waited_s += max(0.0, now - since - spent_s)
        self._idle_until = max(self._idle_until, now)
