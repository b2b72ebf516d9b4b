"""Play and grading of one epoch of a rollout: all that its end is judged by.

Invariant: one statement, for every rollout's end reads it. Nothing here is written.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ARRAY, Text, bindparam, case, func, null, select
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.types import TypeEngine

from infra.db.database import Database
from infra.db.tables.columns import ReplyParts, num_packed
from infra.db.tables.models import CallRow, ExecutionRow, RolloutRow
from mainspring.ids import CampaignId, RolloutId, TaskId
from mainspring.programs.reply import Reply
from mainspring.status import ExecutionState, Player
from mainspring.tasks.criterion import GradeReport


@dataclass(frozen=True, slots=True)
class Played:
    campaign: CampaignId
    task: TaskId
    player: Player
    patch: bytes
    report: GradeReport | None
    num_calls: int
    """Replies, summaries among them."""
    replies: tuple[str, ...]
    """Replies without summaries."""
    parts: tuple[Reply | None, ...]
    """Parts of each reply, as `Call.parts`."""
    num_completion_tokens: int | None
    """Tokens of all replies; None when an endpoint did not count those of one."""
    num_tokens: int | None
    """Tokens of the whole sequence; None likewise."""


def _unless_unknown(total: Any, counted: Any) -> Any:
    """Over the replies; null where `counted` is unknown of one: a part is no total."""
    is_reply = CallRow.number.is_not(None)  # else the outer join's row of none
    unknown = func.bool_or(counted.is_(None)).filter(is_reply)
    return case((unknown, null()), else_=func.coalesce(total(counted), 0))


def _of_replies(column: Any, kind: TypeEngine[Any]) -> Any:
    """In their order, without summaries."""
    ordered = aggregate_order_by(column, CallRow.number)
    return func.array_agg(ordered, type_=ARRAY(kind)).filter(CallRow.is_summary.is_(False))


# Replies in text have no tokens of their own, only the endpoint's count, where it counts.
_IN_TOKENS = func.octet_length(CallRow.completion_ids) > 0
_COMPLETION = case(
    (_IN_TOKENS, num_packed(CallRow.completion_ids)),
    else_=CallRow.num_completion_tokens,
)
_PROMPT = case(
    (_IN_TOKENS, CallRow.prompt_start + num_packed(CallRow.prompt_ids)),
    else_=CallRow.num_prompt_tokens,
)
_READ = (
    select(
        RolloutRow.campaign_id,
        RolloutRow.task_id,
        RolloutRow.player,
        RolloutRow.patch,
        RolloutRow.grade_report,
        func.count(CallRow.number),
        _of_replies(CallRow.text, Text()),
        _of_replies(CallRow.parts, ReplyParts()),
        _unless_unknown(func.sum, _COMPLETION),
        _unless_unknown(func.max, _PROMPT + _COMPLETION),
    )
    .outerjoin(
        CallRow,
        (CallRow.rollout_id == RolloutRow.id) & (CallRow.epoch == RolloutRow.epoch),
    )
    .where(RolloutRow.id == bindparam("rollout"), RolloutRow.epoch == bindparam("epoch"))
    .group_by(RolloutRow.id)
)


_STEPS = (
    select(ExecutionRow.call, func.sum(ExecutionRow.reward))
    .where(
        ExecutionRow.rollout_id == bindparam("rollout"),
        ExecutionRow.epoch == bindparam("epoch"),
        ExecutionRow.state == ExecutionState.DONE,
        ExecutionRow.reward.is_not(None),
    )
    .group_by(ExecutionRow.call)
)


async def step_rewards(db: Database, rollout: RolloutId, epoch: int) -> dict[int, float]:
    """Rewards that the environment gave with single steps, added up by call."""
    async with db.statement() as connection:
        rows = await connection.execute(_STEPS, {"rollout": rollout, "epoch": epoch})
        return {call: float(reward) for call, reward in rows}


async def played(db: Database, rollout: RolloutId, epoch: int) -> Played | None:
    """All that the rollout's reward is computed from; None when `epoch` is over."""
    async with db.statement() as connection:
        row = (await connection.execute(_READ, {"rollout": rollout, "epoch": epoch})).one_or_none()
    if row is None:
        return None
    campaign, task, player, patch, report, num_calls, replies, parts, *counts = row
    num_completion_tokens, num_tokens = counts
    return Played(
        campaign=campaign,
        task=task,
        player=player,
        patch=patch or b"",
        report=None if report is None else GradeReport.model_validate(report),
        num_calls=num_calls,
        replies=tuple(replies or ()),
        parts=tuple(parts or ()),
        num_completion_tokens=num_completion_tokens,
        num_tokens=num_tokens,
    )
