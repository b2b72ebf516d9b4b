"""Times at which the parts of one epoch of a rollout began and ended, by the store's clock.

Read only. Used for traces of rollouts.
"""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select

from infra.db.database import Database
from infra.db.tables.judgement_rows import JudgementRow, JudgeVoteRow
from infra.db.tables.models import CallRow, ExecutionRow, SandboxRow
from mainspring.config.agents.judges import QuestionScope
from mainspring.ids import RolloutId
from mainspring.status import SandboxPurpose


@dataclass(frozen=True, slots=True)
class Period:
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class SpanTimes:
    replies: dict[int, Period]
    """By number of the call: from the request to the stored reply."""
    commands: dict[tuple[int, int], Period]
    """By call and index: from the intent to the stored result."""
    judgements: dict[tuple[str, QuestionScope, int], Period]
    """By judge, scope and call: from the first stored vote to the judgement."""
    grading: Period | None
    """From the first grading sandbox that opened to the last that closed; None: there was none."""


async def read(db: Database, rollout: RolloutId, epoch: int) -> SpanTimes:
    """Times of one epoch's replies, commands, judgements and grading. Raises DatabaseError."""
    call, ran, vote, judged, box = CallRow, ExecutionRow, JudgeVoteRow, JudgementRow, SandboxRow
    seconds = func.make_interval(0, 0, 0, 0, 0, 0, call.latency_s)
    replies = select(call.number, call.created_at - seconds, call.created_at).where(
        call.rollout_id == rollout, call.epoch == epoch
    )
    commands = select(ran.call, ran.index, ran.created_at, ran.finished_at).where(
        ran.rollout_id == rollout, ran.epoch == epoch, ran.finished_at.is_not(None)
    )
    key = (vote.judge, vote.of, vote.call)
    votes = select(*key, func.min(vote.created_at)).where(
        vote.rollout_id == rollout, vote.epoch == epoch
    )
    judgements = select(judged.judge, judged.of, judged.call, judged.created_at).where(
        judged.rollout_id == rollout, judged.epoch == epoch
    )
    grading = select(
        func.min(box.opened_at), func.max(func.coalesce(box.closed_at, box.opened_at))
    ).where(box.rollout_id == rollout, box.epoch == epoch, box.purpose == SandboxPurpose.GRADE)
    async with db.snapshot() as connection:
        reply_rows = (await connection.execute(replies)).all()
        command_rows = (await connection.execute(commands)).all()
        vote_rows = (await connection.execute(votes.group_by(*key))).all()
        judgement_rows = (await connection.execute(judgements)).all()
        opened, closed = (await connection.execute(grading)).one()
    first_votes = {(judge, of, number): at for judge, of, number, at in vote_rows}
    return SpanTimes(
        replies={number: _period(start, end) for number, start, end in reply_rows},
        commands={(number, i): _period(start, end) for number, i, start, end in command_rows},
        judgements={
            (judge, of, number): _period(first_votes.get((judge, of, number), at), at)
            for judge, of, number, at in judgement_rows
        },
        grading=None if opened is None else _period(opened, closed),
    )


def _period(start: datetime, end: datetime) -> Period:
    """The store's clock may have been set back between."""
    return Period(min(start, end), end)
