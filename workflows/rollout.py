"""One rollout: an agent fixes one issue in one sandbox, turn by turn, and is graded.

A turn is one activity for the reply and one for each of its commands, or several turns are one
activity (`rollout.turns_per_activity`). Then come patch (a submission's is collected by the command
that submits), grade and reward. Where no model plays, the
patch is given and there are no turns. Every end is a StopReason; an infrastructure fault ends
masked (invariant 5), the sandbox is closed on every path but `terminate` (invariant 7). State that
matters is in Postgres; this workflow holds counters.
"""

import asyncio

from temporalio import workflow
from temporalio.exceptions import ActivityError, FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from mainspring.protocol.activities import (
        BEGIN_ROLLOUT,
        FINISH_ROLLOUT,
        GENERATE,
        GIVE_PATCH,
        GRADE,
        NEW_EPOCH,
        READ_OUTCOME,
        SCORE,
        play_s,
    )
    from mainspring.protocol.campaign import OutcomeInput
    from mainspring.protocol.names import Workflow
    from mainspring.protocol.program import ASK_AGAIN_SIGNAL, ASK_SIGNAL
    from mainspring.protocol.rollout import (
        STRAGGLER_SIGNAL,
        BeginInput,
        BeginResult,
        FinishInput,
        GenerateInput,
        GenerateResult,
        NewEpochInput,
        PlayInput,
        ReplyKind,
        RolloutInput,
        RolloutRef,
        RolloutResult,
    )
    from mainspring.protocol.scoring import ScoreInput, ScoreResult
    from mainspring.protocol.session import SESSION_SIGNAL
    from mainspring.protocol.timeouts import MAX_TEST_RUNS
    from mainspring.status import FaultKind, Player, RolloutPhase, StopReason, Verdict, is_masked
    from mainspring.trajectories.tally import Tally, TurnLimits
    from workflows import activity_calls, search
    from workflows.answering import Answering
    from workflows.judging import Judging
    from workflows.program import ProgramPlay
    from workflows.remote import RemotePlay
    from workflows.sandbox_life import SandboxLife

MAX_EPOCHS = 3
"""Histories a rollout may start over after a replay diverged."""


@workflow.defn(name=Workflow.ROLLOUT)
class RolloutWorkflow:
    @workflow.init
    def __init__(self, start: RolloutInput) -> None:
        self._start = start
        self._sandbox = SandboxLife(start)
        self._answering = Answering(start)
        self._program = ProgramPlay(start, self._sandbox, self._answering)
        self._remote = RemotePlay(start, self._answering)
        self._judging = Judging(start)
        self._score_s: float | None = None
        self._epoch = 0
        self._turns = 0
        self._num_closed = 0
        """Connections that closed under the request of the next turn."""
        self._generate_s = 0.0
        self._tests_passed: float | None = None
        self._left_s: float | None = None
        """Seconds of its own that were left when most of its group had ended."""
        self._straggler_at_s: float | None = None
        """Where that ends, of the seconds it uses; also in a later epoch."""

    @workflow.signal(name=STRAGGLER_SIGNAL)
    def be_straggler(self, left_s: float) -> None:
        """Enough other rollouts of its group were scored."""
        if self._left_s is None:
            self._left_s = left_s
            self._answering.be_straggler(left_s)

    @workflow.signal(name=ASK_SIGNAL)
    def ask(self, number: int, epoch: int | None = None) -> None:
        """The program that plays asks the policy: its request is stored under this number."""
        self._answering.ask(number, epoch)

    @workflow.signal(name=SESSION_SIGNAL)
    def look_at_session(self) -> None:
        """The session that an agent outside takes was taken, or has ended."""
        self._remote.tell()

    @workflow.signal(name=ASK_AGAIN_SIGNAL)
    def ask_again(self, number: int, epoch: int | None = None) -> None:
        """It asks the same again in the same life."""
        self._answering.ask_again(number, epoch)

    @workflow.run
    async def run(self, start: RolloutInput) -> RolloutResult:
        try:
            begin = await activity_calls.store(
                BEGIN_ROLLOUT,
                BeginInput(rollout=start.rollout, run_id=workflow.info().run_id),
                summary="claim the rollout",
            )
        except FailureError as error:
            if activity_calls.fault_of(error) is not FaultKind.FENCED:
                raise
            return await self._do_nothing(error)
        self._epoch = begin.epoch
        self._score_s = begin.score_s
        self._judging.begin(begin.judges, begin.epoch)
        search.running(begin.task)
        try:
            return await self._play_and_grade(begin)
        except (FailureError, asyncio.CancelledError) as error:
            self._judging.cancel()
            await self._sandbox.close(self._epoch)
            if is_cancelled_exception(error):
                await self._finish(StopReason.CANCELLED)
                raise
            if activity_calls.fault_of(error) is FaultKind.FENCED:
                raise
            result = await self._finish(
                StopReason.INFRA_FAULT, fault=activity_calls.fault_text(error)
            )
            return result.model_copy(update={"broken": activity_calls.broken_by(error)})

    async def _do_nothing(self, error: FailureError) -> RolloutResult:
        """Result that stands of a rollout that is final, or that another run has taken over. A
        person who reset it finds the reason in the memo."""
        why = f"nothing done: {activity_calls.sentence(error)}"
        workflow.upsert_memo({"outcome": why})
        workflow.set_current_details(why)
        ident = self._start.rollout
        outcome = await activity_calls.store(READ_OUTCOME, OutcomeInput(rollout=ident))
        stands = outcome.result or RolloutResult(
            rollout=ident, stop_reason=StopReason.TERMINATED, reward=None, num_turns=0
        )
        search.done(stands, None)
        return stands

    async def _play_and_grade(self, begin: BeginResult) -> RolloutResult:
        if begin.player is Player.POLICY and begin.remote is not None and begin.program is not None:
            handed_in = await self._remote.play(begin, begin.program, begin.remote, self._epoch)
            activity_calls.raise_if_cancelled()
            self._turns = self._answering.num_calls
            self._generate_s = self._answering.generate_s
            stop_reason = handed_in.stop_reason
            if handed_in.verdict is not None:
                return await self._finish(stop_reason, verdict=handed_in.verdict)
        elif begin.player is Player.POLICY and begin.program is not None:
            stop_reason = await self._program.play(begin, begin.program, self._epoch)
            activity_calls.raise_if_cancelled()
            self._turns = self._answering.num_calls
            self._generate_s = self._answering.generate_s
        elif begin.player is Player.POLICY:
            stop_reason = await self._play(begin)
            activity_calls.raise_if_cancelled()
            if self._sandbox.is_open:
                await self._sandbox.collect_patch(
                    self._epoch, self._turns, timeout_s=begin.command_timeout_s
                )
        else:
            stop_reason = StopReason.GIVEN
            await activity_calls.anywhere(
                GIVE_PATCH,
                self._ref(),
                own_s=begin.test_timeout_s,
                summary=f"{begin.player} patch",
            )
            activity_calls.raise_if_cancelled()
        self._judging.ended()
        search.phase(RolloutPhase.GRADING)
        grading_since = workflow.time()
        grade = await activity_calls.anywhere(
            GRADE,
            self._ref(),
            own_s=MAX_TEST_RUNS * begin.test_timeout_s,
            summary="hidden tests in a fresh sandbox",
        )
        self._sandbox.seconds["grade"] = workflow.time() - grading_since
        self._tests_passed = grade.tests_passed
        if grade.verdict is Verdict.FAULT:
            self._judging.cancel()
        if (missing := await self._judging.done()) is not None:
            return await self._finish(StopReason.INFRA_FAULT, fault=missing)
        return await self._finish(stop_reason, verdict=grade.verdict, fault=grade.fault)

    def _ref(self) -> RolloutRef:
        return RolloutRef(rollout=self._start.rollout, epoch=self._epoch)

    async def _play(self, begin: BeginResult) -> StopReason:
        """Take turns until something ends the rollout; start over when a replay diverges."""
        for attempt in range(MAX_EPOCHS):
            try:
                await self._sandbox.open(self._epoch, prefer=begin.prefer)
                return await self._take_turns(begin)
            except ActivityError as error:
                diverged = activity_calls.fault_of(error) is FaultKind.SANDBOX_DIVERGED
                if not diverged or attempt + 1 == MAX_EPOCHS:
                    raise
            await self._sandbox.close(self._epoch)
            ref = await activity_calls.store(
                NEW_EPOCH,
                NewEpochInput(
                    rollout=self._start.rollout,
                    run_id=workflow.info().run_id,
                    from_epoch=self._epoch,
                ),
            )
            self._epoch = ref.epoch
            self._judging.begin(begin.judges, ref.epoch)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _take_turns(self, begin: BeginResult) -> StopReason:
        tally = Tally(
            limits=TurnLimits(
                step_limit=begin.step_limit,
                max_format_errors=begin.max_format_errors,
                rollout_timeout_s=begin.rollout_timeout_s,
                cost_limit=begin.cost_limit,
            )
        )
        self._turns = self._num_closed = 0
        while tally.stop is None:
            first = tally.num_turns
            if begin.turns_per_activity > 1:
                tally = await self._take_turns_together(begin, tally)
            else:
                await self._take_turn(begin, tally)
            self._judging.took(first, tally)
            self._limit_straggler(tally)
        return tally.stop

    def _limit_straggler(self, tally: Tally) -> None:
        """After a turn, so that each rollout has one."""
        if self._left_s is None or not tally.num_turns or tally.limits.straggler_at_s is not None:
            return
        if self._straggler_at_s is None:
            self._straggler_at_s = tally.spent_s + self._left_s
        tally.limits.straggler_at_s = self._straggler_at_s
        tally.end_turn()

    async def _take_turns_together(self, begin: BeginResult, tally: Tally) -> Tally:
        """In one activity, as many as the campaign allows."""
        num_turns = min(begin.turns_per_activity, begin.step_limit - tally.num_turns)
        played = await self._sandbox.play(
            lambda sandbox: PlayInput(
                rollout=self._start.rollout,
                epoch=self._epoch,
                sandbox=sandbox,
                tally=tally,
                num_turns=num_turns,
                min_policy_version=self._start.min_policy_version,
                request_timeout_s=begin.request_timeout_s,
                command_timeout_s=begin.command_timeout_s,
                num_closed=self._num_closed,
            ),
            own_s=play_s(num_turns, begin.request_timeout_s, begin.command_timeout_s),
            summary=f"turns {tally.num_turns + 1} to {tally.num_turns + num_turns}",
        )
        self._turns = played.tally.num_turns
        self._num_closed = played.num_closed
        tokens = "" if played.num_tokens is None else f"{played.num_tokens} tokens, "
        workflow.set_current_details(
            f"turn **{self._turns}** of {begin.step_limit}, return code "
            f"{played.returncode}, {tokens}{self._sandbox.backend}"
        )
        if played.retry_s is not None:
            await asyncio.sleep(played.retry_s)
        return played.tally

    async def _take_turn(self, begin: BeginResult, tally: Tally) -> None:
        turn = tally.num_turns
        reply = await self._generate(turn, begin.request_timeout_s)
        if reply.kind is ReplyKind.CONTEXT_FULL:
            tally.context_is_full()
            return
        has_commands = reply.kind is ReplyKind.COMMAND
        in_format = has_commands or reply.kind is ReplyKind.SUMMARY
        tally.replied(reply.spent_s, in_format=in_format, cost=reply.cost)
        self._turns = tally.num_turns
        for index in range(reply.num_commands if has_commands else 0):
            done = await self._sandbox.execute(
                self._epoch,
                turn,
                index,
                timeout_s=begin.command_timeout_s,
                summary=f"turn {turn + 1}: {_about(reply, index)}",
            )
            workflow.set_current_details(
                f"turn **{turn + 1}** of {begin.step_limit}, return code "
                f"{done.returncode}, {_num_tokens(reply)}{self._sandbox.backend}"
            )
            tally.ran(done.spent_s, submitted=done.submitted)
            if tally.stop is not None:
                return
        tally.end_turn()

    async def _generate(self, turn: int, request_timeout_s: float) -> GenerateResult:
        started = workflow.time()
        reply = await activity_calls.anywhere(
            GENERATE,
            GenerateInput(
                rollout=self._start.rollout,
                epoch=self._epoch,
                turn=turn,
                min_policy_version=self._start.min_policy_version,
            ),
            own_s=request_timeout_s,
            summary=f"turn {turn + 1}: reply",
        )
        activity_calls.raise_if_cancelled()
        self._generate_s += workflow.time() - started
        return reply

    async def _finish(
        self, stop_reason: StopReason, *, verdict: Verdict | None = None, fault: str | None = None
    ) -> RolloutResult:
        scored = await self._score(stop_reason, verdict)
        finished = await activity_calls.store(
            FINISH_ROLLOUT,
            FinishInput(
                rollout=self._start.rollout,
                epoch=self._epoch,
                stop_reason=stop_reason,
                verdict=verdict,
                fault=fault,
                num_turns=self._turns,
                phase_s={"generate": self._generate_s, **self._sandbox.seconds},
                scored=scored,
            ),
            summary=f"end: {stop_reason.value}",
        )
        if finished.num_turns is not None:
            self._turns = finished.num_turns
        result = RolloutResult(
            rollout=self._start.rollout,
            stop_reason=stop_reason,
            reward=finished.reward,
            num_turns=self._turns,
            verdict=verdict,
            fault=fault,
        )
        search.done(result, activity_calls.kind_in(fault))
        workflow.upsert_memo(
            {
                "stop_reason": stop_reason.value,
                "verdict": verdict.value if verdict else None,
                "tests_passed": self._tests_passed,
                "reward": finished.reward,
            }
        )
        return result

    async def _score(self, stop_reason: StopReason, verdict: Verdict | None) -> ScoreResult | None:
        """By the campaign's own functions; None where it has none, or nothing is scored."""
        if self._score_s is None or is_masked(stop_reason, verdict):
            return None
        return await activity_calls.anywhere(
            SCORE,
            ScoreInput(
                rollout=self._start.rollout,
                epoch=self._epoch,
                stop_reason=stop_reason,
                verdict=verdict,
                num_turns=self._turns,
            ),
            own_s=self._score_s,
            summary="reward functions",
            cancelled=workflow.ActivityCancellationType.TRY_CANCEL,
        )


def _about(reply: GenerateResult, index: int) -> str:
    return f"command {index + 1} of {reply.num_commands}" if index else reply.summary


def _num_tokens(reply: GenerateResult) -> str:
    if reply.num_prompt_tokens is None or reply.num_completion_tokens is None:
        return ""
    return f"{reply.num_prompt_tokens + reply.num_completion_tokens} tokens, "
