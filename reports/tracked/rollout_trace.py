"""The trace of one rollout, made from what the store holds of the epoch that counts.

Invariants: `trace_of` is pure, so equal store, equal trace; every time is one that the store has.
No class of the campaign's own is loaded: the process that sends traces need not have them.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from infra.db.database import Database
from infra.db.rollouts import groups, judgements, rollouts, span_times, turns
from infra.db.rollouts.judgements import JudgementRecord
from infra.db.rollouts.rollouts import RolloutRecord
from infra.db.rollouts.span_times import Period, SpanTimes
from infra.db.tasks import tasks
from mainspring.config.agents.judges import QuestionScope
from mainspring.ids import RolloutId
from mainspring.status import Verdict
from mainspring.tasks.criterion import GradeReport
from mainspring.training.tracking import TrackedModel
from mainspring.trajectories.costs import num_completion_tokens, num_prompt_tokens
from mainspring.trajectories.spans import SpanKind, Trace, TraceSpan, bounded, present
from mainspring.trajectories.turns import Call, Execution, by_call
from reports import program_view
from reports.program_view import ShownRequest


@dataclass(frozen=True, slots=True)
class PlayedRollout:
    """A rollout that has ended, as stored."""

    record: RolloutRecord
    policy_version: int
    issue: str
    calls: Sequence[Call]
    executions: Sequence[Execution]
    requests: dict[int, ShownRequest]
    """A program's, by call."""
    judged: Sequence[JudgementRecord]
    report: GradeReport | None
    times: SpanTimes


async def read(database: Database, rollout: RolloutId) -> PlayedRollout:
    """Raises UnknownId and DatabaseError."""
    record = await rollouts.get(database, rollout)
    calls, executions = await turns.history(database, rollout, record.epoch)
    return PlayedRollout(
        record=record,
        policy_version=(await groups.get(database, record.group)).policy_version,
        issue=(await tasks.get_task(database, record.task)).issue,
        calls=calls,
        executions=executions,
        requests=await program_view.requests_of(database, rollout, record.epoch),
        judged=await judgements.of_rollout(database, rollout, record.epoch),
        report=await rollouts.get_grade_report(database, rollout),
        times=await span_times.read(database, rollout, record.epoch),
    )


def trace_of(played: PlayedRollout, model: TrackedModel) -> Trace:
    record = played.record
    caused = _Caused(by_call(played.executions), defaultdict(list))
    of_rollout: list[JudgementRecord] = []
    for each in played.judged:
        is_of_turn = each.judgement.of is QuestionScope.TURNS
        (caused.judged[each.judgement.call] if is_of_turn else of_rollout).append(each)
    children = [_turn(played, model, call, caused) for call in played.calls]
    children += [_judge(played, each) for each in of_rollout]
    begun = record.started_at or record.created_at
    over = max([record.finished_at or begun, *(child.end for child in children)])
    if record.verdict is not None:
        children.append(_grade(played, record.verdict, over))
    start = min([begun, *(child.start for child in children)])
    return Trace(
        key=f"{model.campaign_uid}\n{record.id}\n{record.epoch}",
        root=TraceSpan(
            name=f"rollout {record.id}",
            kind=SpanKind.ROLLOUT,
            start=start,
            end=max(over, start),
            attributes={
                **present(
                    campaign=record.campaign,
                    group=record.group,
                    task=record.task,
                    epoch=record.epoch,
                    attempts=record.attempts,
                    policy_version=played.policy_version,
                    num_turns=record.num_turns,
                    stop_reason=record.stop_reason,
                    verdict=record.verdict,
                    reward=record.reward,
                    suspicions=", ".join(record.suspicions) or None,
                ),
                **{f"reward_part.{name}": v for name, v in _known(record.reward_parts).items()},
                **{f"seconds.{name}": v for name, v in _known(record.phase_s).items()},
            },
            inputs={"task": bounded(played.issue)},
            outputs=present(
                reward=record.reward, verdict=record.verdict, stop_reason=record.stop_reason
            ),
            error=None if record.fault is None else bounded(record.fault),
            children=tuple(children),
        ),
        tags={
            "mainspring.rollout": record.id,
            "mainspring.campaign": record.campaign,
            "mainspring.task": record.task,
            "mainspring.policy_version": str(played.policy_version),
            "mainspring.verdict": record.verdict or "none",
            "mainspring.stop_reason": record.stop_reason or "none",
        },
    )


@dataclass(frozen=True, slots=True)
class _Caused:
    """Consequences of each call, by its number."""

    ran: defaultdict[int, list[Execution]]
    judged: defaultdict[int, list[JudgementRecord]]


def _turn(played: PlayedRollout, model: TrackedModel, call: Call, caused: _Caused) -> TraceSpan:
    reply = _reply(played, model, call, caused)
    commands = [_command(played, each, reply.end) for each in caused.ran[call.number]]
    return TraceSpan(
        name=f"turn {call.number + 1}",
        kind=SpanKind.TURN,
        start=reply.start,
        end=max(span.end for span in (reply, *commands)),
        attributes=present(
            turn=call.number + 1, extends=None if call.parent is None else call.parent + 1
        ),
        children=(
            reply,
            *commands,
            *(_judge(played, each) for each in caused.judged[call.number]),
        ),
    )


def _reply(played: PlayedRollout, model: TrackedModel, call: Call, caused: _Caused) -> TraceSpan:
    period = played.times.replies[call.number]
    parts, asked = call.reply, _asked(played, call, caused)
    called = [f"{each.name} {each.arguments}" for each in parts.tool_calls]
    return TraceSpan(
        name="reply",
        kind=SpanKind.REPLY,
        start=period.start,
        end=period.end,
        attributes=present(
            model=model.model,
            input_tokens=num_prompt_tokens(call),
            output_tokens=num_completion_tokens(call),
            policy_versions=", ".join(map(str, call.versions)) or None,
            finish_reason=call.finish_reason,
            engine=call.engine or None,
            latency_s=call.latency_s,
        ),
        inputs={"new messages": bounded(asked)} if asked else {},
        outputs=present(
            reply=bounded("\n".join([call.text, *called])),
            reasoning=bounded(parts.reasoning) if parts.reasoning else None,
        ),
    )


def _asked(played: PlayedRollout, call: Call, caused: _Caused) -> str:
    """Text that the policy was shown since the call that this one extends."""
    if (request := played.requests.get(call.number)) is not None:
        before = None if call.parent is None else played.requests.get(call.parent)
        return program_view.as_text(request.since(before))
    if call.rewritten is not None:
        return program_view.as_text(call.rewritten.messages)
    if call.parent is None:
        return played.issue
    ran = caused.ran[call.parent]
    return "\n".join(each.output.decode(errors="replace") for each in ran)


def _command(played: PlayedRollout, done: Execution, after: datetime) -> TraceSpan:
    period = played.times.commands.get((done.call, done.index), Period(after, after))
    return TraceSpan(
        name=f"command {done.index + 1}",
        kind=SpanKind.COMMAND,
        start=period.start,
        end=period.end,
        attributes=present(
            exit_code=done.returncode,
            timed_out=done.timed_out,
            truncated=done.truncated,
            wall_s=done.wall_s,
            reward=done.reward,
        ),
        inputs={"command": bounded(done.command)},
        outputs={"output": bounded(done.output.decode(errors="replace"))},
        error="it was killed at its time limit" if done.timed_out else None,
    )


def _judge(played: PlayedRollout, record: JudgementRecord) -> TraceSpan:
    judgement = record.judgement
    period = played.times.judgements[judgement.judge, judgement.of, judgement.call]
    votes = {f"vote {n + 1}": bounded(vote.text) for n, vote in enumerate(record.votes)}
    values = {f"vote.{n + 1}": vote.value for n, vote in enumerate(record.votes)}
    return TraceSpan(
        name=f"judge {judgement.judge} {judgement.of} {judgement.call}",
        kind=SpanKind.JUDGE,
        start=period.start,
        end=period.end,
        attributes={
            **present(
                judge=judgement.judge,
                score=judgement.score,
                num_votes=judgement.num_votes,
                num_valid=judgement.num_valid,
            ),
            **_known(values),
        },
        outputs=votes,
        error=None if judgement.missing is None else bounded(judgement.missing),
    )


def _grade(played: PlayedRollout, verdict: Verdict, over: datetime) -> TraceSpan:
    """Nothing ran where there is no patch: it then stands at the rollout's end."""
    period = played.times.grading or Period(over, over)
    report = played.report
    found = (
        {}
        if report is None
        else present(
            judge=report.judge or None,
            exit_code=report.returncode,
            tests_passed=report.tests_passed,
        )
    )
    return TraceSpan(
        name="grade",
        kind=SpanKind.GRADE,
        start=period.start,
        end=period.end,
        attributes={"verdict": verdict, **found},
        outputs=present(
            verdict=verdict, reason=bounded(report.note) if report and report.note else None
        ),
        error=bounded(played.record.fault or "") if verdict is Verdict.FAULT else None,
    )


def _known(values: dict[str, float] | dict[str, float | None] | None) -> dict[str, float]:
    return {name: value for name, value in (values or {}).items() if value is not None}
