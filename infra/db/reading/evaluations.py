"""Evaluations of a campaign's policy versions, and the log-prob gaps checked with them.

An evaluation counts only when all its rollouts have ended. `rollouts` has those that ended of
every evaluation, for choosing which ones to show.
"""

from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import and_, case, false, func, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.tables.models import GroupRow, PolicyVersionRow, RolloutRow
from infra.db.tables.rollout_ends import DONE, JUDGED, MASKED, RESOLVED, SCORED
from mainspring.ids import CampaignId, RolloutId, TaskId
from mainspring.rewards.paired import TaskTally
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
    def solve_rate(self) -> float | None:
        scored = self.num_tasks - self.num_masked
        return self.num_resolved / scored if scored > 0 else None


@dataclass(frozen=True, slots=True)
class EvaluatedRollout:
    id: RolloutId
    task: TaskId
    policy_version: int
    solved: bool | None
    """None: it was masked."""


@dataclass(frozen=True, slots=True)
class CheckedGap:
    """Log-probs served under one policy version, compared with recomputed ones."""

    version: int
    gap_max: float
    num_tokens: int
    """Tokens it was measured on."""


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


async def rollouts(
    connection: AsyncConnection, campaign: CampaignId, split: str
) -> list[EvaluatedRollout]:
    """Rollouts of one split, sampled, that ended: the newest version first, each in its order."""
    rows = await connection.execute(
        select(
            RolloutRow.id,
            RolloutRow.task_id,
            GroupRow.policy_version,
            case((RESOLVED, true()), (SCORED, false())),
        )
        .join(RolloutRow, RolloutRow.group_id == GroupRow.id)
        .where(
            GroupRow.campaign_id == campaign,
            GroupRow.kind == GroupKind.EVAL,
            GroupRow.split == split,
            GroupRow.sampling == Sampling.SAMPLED,
            DONE,
        )
        .order_by(GroupRow.policy_version.desc(), RolloutRow.sample_index)
    )
    return [EvaluatedRollout(*row) for row in rows]


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
