"""Evaluations of a campaign's policy versions, and the log-prob gaps checked with them.

An evaluation counts only when all its rollouts have ended.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, case, false, func, literal, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import aliased

from infra.db.tables.columns import num_packed
from infra.db.tables.models import CallRow, GroupRow, PolicyVersionRow, RolloutRow
from infra.db.tables.rollout_ends import DONE, JUDGED, MASKED, RESOLVED, SUSPICIOUS
from mainspring.config.agents.prices import PriceConfig
from mainspring.ids import CampaignId, RolloutId
from mainspring.rewards.paired import TaskTally
from mainspring.rewards.passk import wilson
from mainspring.status import GroupKind, Sampling, Verdict


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One policy version on one split, with one way of sampling."""

    version: int
    split: str
    sampling: Sampling
    num_tasks: int
    num_resolved: int
    num_masked: int = 0
    finished_at: datetime | None = field(default=None, compare=False)
    """When its last rollout ended."""

    @property
    def num_scored(self) -> int:
        return self.num_tasks - self.num_masked

    @property
    def solve_rate(self) -> float | None:
        return self.num_resolved / self.num_scored if self.num_scored > 0 else None

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the solve rate, which must be known."""
        return wilson(self.num_resolved / self.num_scored, self.num_scored)


def scored_of(
    evaluations: Iterable[Evaluation], split: str, sampling: Sampling
) -> list[Evaluation]:
    """Evaluations of one kind that scored anything, oldest version first."""
    kind = (split, sampling)
    scored = (
        each
        for each in evaluations
        if (each.split, each.sampling) == kind and each.solve_rate is not None
    )
    return sorted(scored, key=lambda each: each.version)


@dataclass(frozen=True, slots=True)
class CheckedGap:
    """Log-probs served under one policy version, compared with recomputed ones."""

    version: int
    gap_max: float
    num_tokens: int
    """Tokens it was measured on."""


@dataclass(frozen=True, slots=True)
class TokensSpent:
    num_prompt: int
    num_cached: int
    """Those of the prompts that the call before held."""
    num_completion: int
    is_partial: bool
    """An endpoint did not count the tokens of some calls."""

    def dollars(self, price: PriceConfig | None) -> float | None:
        """None: no price, or not all tokens were counted."""
        if price is None or self.is_partial:
            return None
        return price.dollars(self.num_prompt, self.num_cached, self.num_completion)


async def read(connection: AsyncConnection, campaign: CampaignId) -> tuple[Evaluation, ...]:
    """Results by version, split and sampling."""
    rows = await connection.execute(
        select(
            GroupRow.policy_version,
            GroupRow.split,
            GroupRow.sampling,
            func.count(),
            func.count().filter(RESOLVED),
            func.count().filter(RolloutRow.reward.is_(None)),
            func.max(RolloutRow.finished_at),
        )
        .join(RolloutRow, RolloutRow.group_id == GroupRow.id)
        .where(GroupRow.campaign_id == campaign, GroupRow.kind == GroupKind.EVAL)
        .group_by(GroupRow.policy_version, GroupRow.split, GroupRow.sampling)
        .having(func.bool_and(DONE))
        .order_by(GroupRow.policy_version, GroupRow.split, GroupRow.sampling.desc())
    )
    return tuple(Evaluation(*row) for row in rows)


async def worth_reading(
    connection: AsyncConnection, campaign: CampaignId, limit: int, *, mixed: bool
) -> list[RolloutId]:
    """Rollouts that ended, at most `limit`: suspicious ones, masked ones, those not resolved, those
    resolved. `mixed`: some of each, the newest versions first; otherwise each kind whole before the
    next, by group."""
    kind = case((SUSPICIOUS, 0), (MASKED, 1), (RESOLVED, 3), else_=2)
    place = func.row_number().over(
        partition_by=kind, order_by=(GroupRow.policy_version.desc(), RolloutRow.id)
    )
    placed = (
        select(RolloutRow.id, kind.label("kind"), place.label("place"))
        .join(GroupRow, GroupRow.id == RolloutRow.group_id)
        .where(RolloutRow.campaign_id == campaign, DONE)
        .subquery()
    )
    order = (placed.c.place, placed.c.kind) if mixed else (placed.c.kind, placed.c.id)
    return list(await connection.scalars(select(placed.c.id).order_by(*order).limit(limit)))


async def by_task(connection: AsyncConnection, run: CampaignId) -> dict[str, TaskTally]:
    """Rollouts of an evaluation or regrade, by task: solved, scored, masked and unfinished."""
    solved = and_(JUDGED, RolloutRow.verdict == Verdict.RESOLVED)
    numbers = [func.count().filter(each) for each in (solved, JUDGED, MASKED, ~DONE)]
    rows = await connection.execute(
        select(RolloutRow.task_id, *numbers)
        .where(RolloutRow.campaign_id == run)
        .group_by(RolloutRow.task_id)
    )
    return {task: TaskTally(*counts) for task, *counts in rows}


async def tokens_spent(connection: AsyncConnection, run: CampaignId) -> TokensSpent:
    """Tokens of all rollouts that ended, each as it counts, as an endpoint bills them: see
    mainspring.trajectories.costs, which has the same for one call."""
    before = aliased(CallRow)
    in_text = and_(num_packed(CallRow.prompt_ids) == 0, num_packed(CallRow.completion_ids) == 0)
    prompt, completion = _counted(CallRow)
    held = case(
        (~in_text, CallRow.prompt_start),
        else_=func.least(func.coalesce(sum(_counted(before), start=literal(0)), 0), prompt),
    )
    extends = and_(
        before.rollout_id == CallRow.rollout_id,
        before.epoch == CallRow.epoch,
        before.number == CallRow.parent,
    )
    uncounted = or_(prompt.is_(None), completion.is_(None))
    row = await connection.execute(
        select(
            func.coalesce(func.sum(prompt), 0),
            func.coalesce(func.sum(held), 0),
            func.coalesce(func.sum(completion), 0),
            func.coalesce(func.bool_or(uncounted), false()),
        )
        .select_from(CallRow)
        .join(RolloutRow, RolloutRow.id == CallRow.rollout_id)
        .outerjoin(before, extends)
        .where(RolloutRow.campaign_id == run, CallRow.epoch == RolloutRow.epoch, DONE)
    )
    return TokensSpent(*row.one())


def _counted(row: Any) -> tuple[ColumnElement[int], ColumnElement[int]]:
    """Prompt and completion tokens of a call; NULL from an endpoint that does not count."""
    has_ids = or_(num_packed(row.prompt_ids) > 0, num_packed(row.completion_ids) > 0)
    prompt = case(
        (has_ids, row.prompt_start + num_packed(row.prompt_ids)), else_=row.num_prompt_tokens
    )
    completion = case((has_ids, num_packed(row.completion_ids)), else_=row.num_completion_tokens)
    return prompt, completion


async def checked_gaps(connection: AsyncConnection, campaign: CampaignId) -> tuple[CheckedGap, ...]:
    """Measured log-prob gaps by version; those that were measured on no token are left out."""
    rows = await connection.execute(
        select(
            PolicyVersionRow.version,
            PolicyVersionRow.logprob_gap_max,
            func.coalesce(PolicyVersionRow.num_gap_tokens, 0),
        )
        .where(
            PolicyVersionRow.campaign_id == campaign,
            PolicyVersionRow.logprob_gap_max.is_not(None),
        )
        .order_by(PolicyVersionRow.version)
    )
    return tuple(CheckedGap(*row) for row in rows)
