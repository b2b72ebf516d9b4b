"""Details of a step: each rollout of its batch as it was trained, and its worst log-prob gaps.

Invariant: written in the transaction that makes the step done, or not at all: a step happens once,
and so do its details. Steps of releases before have none. Used by `steps`, and read by screens and
the viewer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from sqlalchemy import insert, select, type_coerce
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.tables.columns import FloatArray
from infra.db.tables.models import RolloutRow
from infra.db.tables.step_detail_rows import StepGapRow, StepRolloutRow, StepTokenRow
from mainspring.ids import CampaignId, RolloutId
from mainspring.training.trained_rollouts import KeptCall, StoredGap, TrainedRollout

CALLS_AT_ONCE = 500
"""Whose tokens are written in one statement: of 2,000 tokens each 8 MB."""
_ROLLOUT = (
    StepRolloutRow.rollout_id,
    StepRolloutRow.advantage,
    StepRolloutRow.is_mean,
    StepRolloutRow.num_trained_tokens,
    StepRolloutRow.masked_why,
    StepRolloutRow.call_advantages,
)
_GAP = (
    StepGapRow.rollout_id,
    StepGapRow.call,
    StepGapRow.offset,
    StepGapRow.served,
    StepGapRow.recomputed,
)


@dataclass(frozen=True, slots=True)
class StepOfRollout:
    """Record of one step about one rollout."""

    campaign: CampaignId
    """The rollout's own, or one that trains its batch again."""
    step: int
    trained: TrainedRollout
    gaps: Sequence[StoredGap]
    """Those of its tokens that are among the worst of the step, the largest first."""


async def write(
    connection: AsyncConnection,
    campaign: CampaignId,
    step: int,
    rollouts: Sequence[TrainedRollout],
    gaps: Sequence[StoredGap],
    kept: Sequence[KeptCall] = (),
) -> None:
    """Store them with a step that is being committed."""
    key: dict[str, Any] = {"campaign_id": campaign, "step": step}
    if rollouts:
        await connection.execute(
            insert(StepRolloutRow), [key | _rollout_values(each) for each in rollouts]
        )
    if gaps:
        await connection.execute(
            insert(StepGapRow),
            [
                key
                | {
                    "rollout_id": gap.rollout,
                    "call": gap.call,
                    "offset": gap.offset,
                    "served": _finite(gap.served),
                    "recomputed": _finite(gap.recomputed),
                }
                for gap in gaps
            ],
        )
    for first in range(0, len(kept), CALLS_AT_ONCE):
        rows = [
            key
            | {
                "rollout_id": each.rollout,
                "call": each.call,
                "logprobs": each.logprobs,
                "entropies": each.entropies,
            }
            for each in kept[first : first + CALLS_AT_ONCE]
        ]
        await connection.execute(insert(StepTokenRow), rows)


async def of_step(
    connection: AsyncConnection, campaign: CampaignId, step: int
) -> dict[RolloutId, TrainedRollout]:
    """Records by rollout; empty for a step of an earlier release."""
    rows = await connection.execute(
        select(*_ROLLOUT).where(StepRolloutRow.campaign_id == campaign, StepRolloutRow.step == step)
    )
    return {RolloutId(row[0]): _trained(*row) for row in rows}


async def gaps_of_step(
    connection: AsyncConnection, campaign: CampaignId, step: int
) -> list[StoredGap]:
    """The tokens with the largest gap, the largest first."""
    rows = await connection.execute(
        select(*_GAP).where(StepGapRow.campaign_id == campaign, StepGapRow.step == step)
    )
    return _sorted([StoredGap(*row) for row in rows])


async def of_rollout(connection: AsyncConnection, rollout: RolloutId) -> StepOfRollout | None:
    """Read what the step of the rollout's own campaign did with it; None: nothing is stored."""
    row = (
        await connection.execute(
            select(StepRolloutRow.campaign_id, StepRolloutRow.step, *_ROLLOUT)
            .join(RolloutRow, RolloutRow.id == StepRolloutRow.rollout_id)
            .where(
                StepRolloutRow.rollout_id == rollout,
                StepRolloutRow.campaign_id == RolloutRow.campaign_id,
            )
        )
    ).one_or_none()
    if row is None:
        return None
    campaign, step, *trained = row
    gaps = await connection.execute(
        select(*_GAP).where(
            StepGapRow.campaign_id == campaign,
            StepGapRow.step == step,
            StepGapRow.rollout_id == rollout,
        )
    )
    return StepOfRollout(
        CampaignId(campaign), step, _trained(*trained), _sorted([StoredGap(*gap) for gap in gaps])
    )


async def kept_of(
    connection: AsyncConnection, step: StepOfRollout, first: int, last: int
) -> dict[int, KeptCall]:
    """Numbers of all tokens of the rollout's calls from `first` to `last`; empty where they are not
    kept."""
    rows = await connection.execute(
        select(
            StepTokenRow.rollout_id,
            StepTokenRow.call,
            type_coerce(StepTokenRow.logprobs, FloatArray()),
            type_coerce(StepTokenRow.entropies, FloatArray()),
        ).where(
            StepTokenRow.campaign_id == step.campaign,
            StepTokenRow.step == step.step,
            StepTokenRow.rollout_id == step.trained.rollout,
            StepTokenRow.call.between(first, last),
        )
    )
    return {row[1]: KeptCall(RolloutId(row[0]), *row[1:]) for row in rows}


async def by_rollouts(
    connection: AsyncConnection, campaign: CampaignId, rollouts: Sequence[RolloutId]
) -> dict[RolloutId, TrainedRollout]:
    """Read what steps of the campaign did with these rollouts."""
    rows = await connection.execute(
        select(*_ROLLOUT).where(
            StepRolloutRow.campaign_id == campaign, StepRolloutRow.rollout_id.in_(rollouts)
        )
    )
    return {RolloutId(row[0]): _trained(*row) for row in rows}


def _sorted(gaps: Sequence[StoredGap]) -> list[StoredGap]:
    return sorted(gaps, key=lambda gap: (-gap.size, gap.rollout, gap.call, gap.offset))


def _rollout_values(trained: TrainedRollout) -> dict[str, Any]:
    by_call = trained.call_advantages
    return {
        "rollout_id": trained.rollout,
        "advantage": _finite(trained.advantage),
        "is_mean": trained.is_mean,
        "call_advantages": None
        if by_call is None
        else {str(call): _finite(advantage) for call, advantage in by_call.items()},
        "num_trained_tokens": trained.num_trained_tokens,
        "masked_why": trained.masked_why,
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def _trained(
    rollout: str,
    advantage: float | None,
    is_mean: bool,
    num_trained_tokens: int,
    masked_why: Any,
    by_call: Mapping[str, float | None] | None,
) -> TrainedRollout:
    return TrainedRollout(
        rollout=RolloutId(rollout),
        advantage=advantage,
        is_mean=is_mean,
        num_trained_tokens=num_trained_tokens,
        masked_why=masked_why,
        call_advantages=None
        if by_call is None
        else {int(call): value for call, value in by_call.items() if value is not None},
    )
