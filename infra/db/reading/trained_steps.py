"""Steps that are done: what the trainer measured, and the rollouts each was trained on.

Everything is in order of the step. Masked rollouts are counted, and are part of no mean.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Float, Integer, Row, Select, and_, cast, func, select, true
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import InstrumentedAttribute

from infra.db.tables.models import RolloutRow, StepGroupRow, StepRow
from infra.db.tables.rollout_ends import RESOLVED, SAMPLED_TOKENS, SCORED, SUSPICIOUS
from mainspring.ids import CampaignId, RolloutId
from mainspring.status import StepStatus


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step; step n made policy version n."""

    step: int
    reward_mean: float | None = None
    solve_rate: float | None = None
    """Solve rate of the rollouts the step was trained on."""
    mixed_groups: int | None = None
    """Groups with both solved and unsolved rollouts: the only ones that carry a gradient."""
    entropy: float | None = None
    grad_norm: float | None = None
    clip_fraction: float | None = None
    logprob_gap_max: float | None = None
    """Largest difference of served and recomputed log-prob under the same weights."""
    num_gap_tokens: int | None = None
    """Tokens the gap was measured on."""
    train_s: float | None = None
    staleness_mean: float | None = None
    """Policy versions between sampling and training, token-weighted."""
    all_zero_groups: int | None = None
    """Groups of the batch none of whose rollouts resolved the task."""
    all_one_groups: int | None = None
    """Groups of the batch whose rollouts all resolved it."""
    masked_rollouts: int | None = None
    """Rollouts of the batch's groups that could not be scored."""
    metrics: dict[str, float | None] = field(default_factory=dict)
    """Everything that the trainer measured, by name."""
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean length of the rollouts one step was trained on."""

    step: int
    num_turns: float
    num_tokens: float
    """Sampled tokens of a rollout, over all its turns."""


@dataclass(frozen=True, slots=True)
class Composition:
    """Reward, by its parts, of the rollouts that one step was trained on."""

    step: int
    parts: dict[str, float]
    """Mean of each part of the reward, before its weight."""
    suspicious: float
    """Share of the rollouts that look like cheating."""


async def times(connection: AsyncConnection, campaign: CampaignId) -> list[tuple[int, datetime]]:
    """When each finished step was committed."""
    rows = await connection.execute(
        select(StepRow.step, StepRow.finished_at)
        .where(StepRow.campaign_id == campaign, StepRow.status == StepStatus.DONE)
        .order_by(StepRow.step)
    )
    return [(step, finished_at) for step, finished_at in rows]


async def rewards(
    connection: AsyncConnection, campaign: CampaignId, step: int
) -> list[tuple[RolloutId, float | None]]:
    """The reward of each rollout of a step's batch, in batch order; None: masked."""
    rows = await connection.execute(
        select(RolloutRow.id, RolloutRow.reward)
        .join(StepGroupRow, StepGroupRow.group_id == RolloutRow.group_id)
        .where(StepGroupRow.campaign_id == campaign, StepGroupRow.step == step)
        .order_by(StepGroupRow.position, RolloutRow.sample_index)
    )
    return [(RolloutId(id), reward) for id, reward in rows]


async def read(
    connection: AsyncConnection, campaign: CampaignId, only: Collection[int] | None = None
) -> tuple[Step, ...]:
    """All steps, or `only` these."""
    by_group = (
        select(
            StepGroupRow.step,
            func.count().filter(RESOLVED).label("resolved"),
            func.count().filter(SCORED).label("scored"),
            func.count().filter(~SCORED).label("masked"),
        )
        .join(RolloutRow, RolloutRow.group_id == StepGroupRow.group_id)
        .where(StepGroupRow.campaign_id == campaign, _among(StepGroupRow.step, only))
        .group_by(StepGroupRow.step, StepGroupRow.group_id)
        .subquery()
    )
    group = by_group.c
    flat = group.scored > 0
    batch = (
        select(
            group.step,
            (cast(func.sum(group.resolved), Float) / func.nullif(func.sum(group.scored), 0)).label(
                "solve_rate"
            ),
            func.count().filter(flat, group.resolved == 0).label("all_zero"),
            func.count().filter(flat, group.resolved == group.scored).label("all_one"),
            cast(func.sum(group.masked), Integer).label("masked"),
        )
        .group_by(group.step)
        .subquery()
    )
    rows = await connection.execute(
        select(
            StepRow.step,
            StepRow.metrics,
            StepRow.finished_at,
            batch.c.solve_rate,
            batch.c.all_zero,
            batch.c.all_one,
            batch.c.masked,
        )
        .outerjoin(batch, batch.c.step == StepRow.step)
        .where(
            StepRow.campaign_id == campaign,
            StepRow.status == StepStatus.DONE,
            _among(StepRow.step, only),
        )
        .order_by(StepRow.step)
    )
    return tuple(_step(row) for row in rows)


async def lengths(
    connection: AsyncConnection, campaign: CampaignId, only: Collection[int] | None = None
) -> tuple[Lengths, ...]:
    """Mean turns and tokens of the scored rollouts of each step."""
    tokens = func.coalesce(RolloutRow.num_sampled_tokens, SAMPLED_TOKENS)
    rows = await connection.execute(
        _scored(campaign, only)
        .add_columns(
            cast(func.avg(RolloutRow.num_turns), Float),
            cast(func.avg(tokens), Float),
        )
        .group_by(StepGroupRow.step)
        .order_by(StepGroupRow.step)
    )
    return tuple(Lengths(*row) for row in rows)


async def compositions(
    connection: AsyncConnection, campaign: CampaignId, only: Collection[int] | None = None
) -> tuple[Composition, ...]:
    """Mean reward parts of each step, and its share of suspicious rollouts."""
    part = func.jsonb_each_text(RolloutRow.reward_parts).table_valued("key", "value").alias("part")
    means = (
        _scored(campaign, only)
        .join(part, true())
        .add_columns(part.c.key, func.avg(cast(part.c.value, Float)))
        .group_by(StepGroupRow.step, part.c.key)
        .order_by(StepGroupRow.step, part.c.key)
    )
    shares = (
        _scored(campaign, only)
        .add_columns(cast(func.count().filter(SUSPICIOUS), Float) / func.count())
        .group_by(StepGroupRow.step)
        .order_by(StepGroupRow.step)
    )
    parts: dict[int, dict[str, float]] = {}
    for step, name, mean in await connection.execute(means):
        parts.setdefault(step, {})[name] = mean
    return tuple(
        Composition(step, parts.get(step, {}), share)
        for step, share in await connection.execute(shares)
    )


def _among(step: InstrumentedAttribute[int], only: Collection[int] | None) -> ColumnElement[bool]:
    return true() if only is None else step.in_(only)


def _scored(campaign: CampaignId, only: Collection[int] | None) -> Select[Any]:
    """The step's number, for each scored rollout of every finished step."""
    return (
        select(StepGroupRow.step)
        .join(RolloutRow, RolloutRow.group_id == StepGroupRow.group_id)
        .join(
            StepRow,
            and_(
                StepRow.campaign_id == StepGroupRow.campaign_id, StepRow.step == StepGroupRow.step
            ),
        )
        .where(
            StepGroupRow.campaign_id == campaign,
            StepRow.status == StepStatus.DONE,
            SCORED,
            _among(StepGroupRow.step, only),
        )
    )


def _step(row: Row[Any]) -> Step:
    metrics: dict[str, float | None] = row.metrics

    def whole(name: str) -> int | None:
        value = metrics.get(name)
        return None if value is None else int(value)

    return Step(
        step=row.step,
        reward_mean=metrics.get("reward_mean"),
        solve_rate=row.solve_rate,
        mixed_groups=whole("mixed_groups"),
        entropy=metrics.get("entropy"),
        grad_norm=metrics.get("grad_norm"),
        clip_fraction=metrics.get("clip_fraction"),
        logprob_gap_max=metrics.get("logprob_gap_max"),
        num_gap_tokens=whole("num_gap_tokens"),
        train_s=metrics.get("seconds"),
        staleness_mean=metrics.get("staleness_mean"),
        all_zero_groups=row.all_zero,
        all_one_groups=row.all_one,
        masked_rollouts=row.masked,
        metrics=dict(metrics),
        finished_at=row.finished_at,
    )
