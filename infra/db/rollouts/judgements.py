"""Judgements of a rollout and their votes.

Invariants: the first vote stored under a number and the first judgement of a question stand; a
write under an older epoch, or of a rollout that has ended, raises Fenced. A vote is stored when it
is given: a process that is killed loses those under way, and no more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, func, select

from infra.db.database import Database
from infra.db.fence import fenced_insert, refuse_finished, refuse_older
from infra.db.tables.judgement_rows import JudgementRow, JudgeVoteRow
from infra.db.tables.models import RolloutRow
from mainspring.config.agents.judges import QuestionScope
from mainspring.ids import CampaignId, RolloutId
from mainspring.rewards.votes import Judgement, RecentJudgements, Vote

_ROW, _VOTE = JudgementRow, JudgeVoteRow
_KEY = ("rollout_id", "epoch", "judge", "of", "call")
_RECORD = (
    *(_ROW.judge, _ROW.of, _ROW.call, _ROW.score, _ROW.num_votes, _ROW.num_valid, _ROW.missing),
)
"""The fields of a Judgement, in their order."""
_PUT_VOTE = fenced_insert(_VOTE, [*_KEY, "number", "text", "value"], returning=["number"])
_PUT = fenced_insert(
    _ROW,
    [*_KEY, "prompt_sha256", "score", "num_votes", "num_valid", "missing"],
    returning=[column.key for column in _RECORD],
)
_GET = select(*_RECORD).where(*(getattr(_ROW, name) == bindparam(name) for name in _KEY))
_VOTES = (
    select(_VOTE.number, _VOTE.text, _VOTE.value)
    .where(*(getattr(_VOTE, name) == bindparam(name) for name in _KEY))
    .order_by(_VOTE.number)
)


@dataclass(frozen=True, slots=True)
class JudgeQuestion:
    """One thing that one judge is asked about."""

    rollout: RolloutId
    epoch: int
    judge: str
    of: QuestionScope
    call: int
    """Number of the call that is judged; 0 of a rollout; of a reward function, the question's."""

    @property
    def row(self) -> dict[str, Any]:
        values = (self.rollout, self.epoch, self.judge, self.of, self.call)
        return dict(zip(_KEY, values, strict=True))


@dataclass(frozen=True, slots=True)
class JudgementRecord:
    judgement: Judgement
    votes: tuple[Vote, ...]


async def put_vote(db: Database, question: JudgeQuestion, number: int, vote: Vote) -> None:
    """Store one vote, unless one of its number is stored. Raises Fenced."""
    values = question.row | {"number": number, "text": vote.text, "value": vote.value}
    async with db.statement() as connection:
        if await connection.scalar(_PUT_VOTE, values) is not None:
            return
        await refuse_older(connection, question.rollout, question.epoch)
        stored = await connection.execute(_VOTES, question.row)
        if number not in {row.number for row in stored}:
            refuse_finished(question.rollout)


async def votes(db: Database, question: JudgeQuestion) -> dict[int, Vote]:
    """The votes that are stored, by their number."""
    async with db.statement() as connection:
        rows = await connection.execute(_VOTES, question.row)
        return {row.number: Vote(row.text, row.value) for row in rows}


async def put(
    db: Database,
    question: JudgeQuestion,
    *,
    prompt_sha256: str,
    score: float | None,
    given: Sequence[Vote],
    missing: str | None,
) -> Judgement:
    """Settle the question; the judgement that stands. Raises Fenced."""
    values = question.row | {
        "prompt_sha256": prompt_sha256,
        "score": score,
        "num_votes": len(given),
        "num_valid": sum(vote.value is not None for vote in given),
        "missing": missing,
    }
    async with db.statement() as connection:
        row = (await connection.execute(_PUT, values)).one_or_none()
        if row is None:
            await refuse_older(connection, question.rollout, question.epoch)
            row = (await connection.execute(_GET, question.row)).one_or_none()
        if row is None:
            refuse_finished(question.rollout)
        return Judgement(*row)


async def get(db: Database, question: JudgeQuestion) -> Judgement | None:
    """The judgement that stands; None: the question is not settled."""
    async with db.statement() as connection:
        row = (await connection.execute(_GET, question.row)).one_or_none()
    return None if row is None else Judgement(*row)


async def of_rollout(db: Database, rollout: RolloutId, epoch: int) -> list[JudgementRecord]:
    """All that judges thought of one epoch of a rollout, by judge and call."""
    judged = (_ROW.rollout_id == rollout, _ROW.epoch == epoch)
    voted = (_VOTE.rollout_id == rollout, _VOTE.epoch == epoch)
    key = (_VOTE.judge, _VOTE.of, _VOTE.call)
    async with db.statement() as connection:
        rows = await connection.execute(
            select(*_RECORD).where(*judged).order_by(_ROW.judge, _ROW.of, _ROW.call)
        )
        records = [Judgement(*row) for row in rows]
        given: dict[tuple[str, QuestionScope, int], list[Vote]] = {}
        for row in await connection.execute(
            select(*key, _VOTE.text, _VOTE.value).where(*voted).order_by(*key, _VOTE.number)
        ):
            given.setdefault((row.judge, row.of, row.call), []).append(Vote(row.text, row.value))
    return [
        JudgementRecord(each, tuple(given.get((each.judge, each.of, each.call), ())))
        for each in records
    ]


async def scores(db: Database, rollout: RolloutId, epoch: int) -> list[Judgement]:
    """The judgements of one epoch of a rollout, by judge and call, without the votes' texts."""
    statement = (
        select(*_RECORD)
        .where(_ROW.rollout_id == rollout, _ROW.epoch == epoch)
        .order_by(_ROW.judge, _ROW.of, _ROW.call)
    )
    async with db.statement() as connection:
        return [Judgement(*row) for row in await connection.execute(statement)]


async def recent(db: Database, campaign: CampaignId, judge: str, limit: int) -> RecentJudgements:
    """The newest judgements of a judge, and its newest vote as an example."""
    newest = (
        select(*_RECORD, _ROW.rollout_id, _ROW.epoch)
        .join(RolloutRow, RolloutRow.id == _ROW.rollout_id)
        .where(RolloutRow.campaign_id == campaign, _ROW.judge == judge)
        .order_by(_ROW.created_at.desc())
        .limit(limit)
    )
    async with db.statement() as connection:
        rows = (await connection.execute(newest)).all()
        num = len(_RECORD)
        example = None
        voted = next((row for row in rows if row.num_votes), None)
        if voted is not None:
            question = JudgeQuestion(
                voted.rollout_id, voted.epoch, voted.judge, voted.of, voted.call
            )
            votes_given = (await connection.execute(_VOTES, question.row)).all()
            example = votes_given[0].text if votes_given else None
    return RecentJudgements(judge, tuple(Judgement(*row[:num]) for row in rows), example)


async def missing(db: Database, campaign: CampaignId) -> dict[str, tuple[int, int]]:
    """How many judgements of each judge are missing, and of how many; without those that lack
    none."""
    lacks = func.count().filter(_ROW.score.is_(None))
    statement = (
        select(_ROW.judge, lacks, func.count())
        .join(RolloutRow, (RolloutRow.id == _ROW.rollout_id) & (RolloutRow.epoch == _ROW.epoch))
        .where(RolloutRow.campaign_id == campaign)
        .group_by(_ROW.judge)
        .having(lacks > 0)
        .order_by(_ROW.judge)
    )
    async with db.statement() as connection:
        rows = await connection.execute(statement)
        return {judge: (num_missing, num) for judge, num_missing, num in rows}
