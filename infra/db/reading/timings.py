"""Where a campaign's time went: each phase of its rollouts, one reply, one command, one step.

A phase is measured as a rollout sees it, queueing included, over the NEWEST rollouts that ended: a
percentile over all replies of a long campaign takes seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sqlalchemy import ColumnElement, Float, cast, func, select, true
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import InstrumentedAttribute

from infra.db.tables.models import CallRow, ExecutionRow, RolloutRow, StepRow
from infra.db.tables.rollout_ends import DONE
from mainspring.ids import CampaignId, RolloutId
from mainspring.status import ExecutionState, StepStatus

_PHASES = ("open", "generate", "execute", "restore", "grade")
"""In the order a rollout goes through them; others follow by name."""
NEWEST = 1_000


@dataclass(frozen=True, slots=True)
class PhaseTiming:
    """How long rollouts spent in one phase."""

    phase: str
    p50_s: float
    p95_s: float


async def read(connection: AsyncConnection, campaign: CampaignId) -> tuple[PhaseTiming, ...]:
    """The phases in their order, then one reply, one command, one step, where measured."""
    newest = (
        select(RolloutRow.id, RolloutRow.phase_s)
        .where(RolloutRow.campaign_id == campaign, DONE)
        .order_by(RolloutRow.finished_at.desc())
        .limit(NEWEST)
        .subquery()
    )
    phase = func.jsonb_each_text(newest.c.phase_s).table_valued("key", "value").alias("phase")
    by_phase = await connection.execute(
        select(phase.c.key, *_percentiles(cast(phase.c.value, Float)))
        .select_from(newest)
        .join(phase, true())
        .where(phase.c.value.is_not(None))
        .group_by(phase.c.key)
    )
    replies = (
        select(*_percentiles(CallRow.latency_s))
        .select_from(newest)
        .join(CallRow, CallRow.rollout_id == newest.c.id)
    )
    commands = (
        select(*_percentiles(ExecutionRow.wall_s))
        .select_from(newest)
        .join(ExecutionRow, ExecutionRow.rollout_id == newest.c.id)
        .where(ExecutionRow.state == ExecutionState.DONE)
    )
    step_seconds = StepRow.metrics["seconds"].as_float()
    step = select(*_percentiles(step_seconds)).where(
        StepRow.campaign_id == campaign, StepRow.status == StepStatus.DONE
    )
    order = {name: position for position, name in enumerate(_PHASES)}
    timings = sorted(
        (PhaseTiming(*row) for row in by_phase),
        key=lambda timing: (order.get(timing.phase, len(order)), timing.phase),
    )
    for name, statement in (("one reply", replies), ("one command", commands), ("one step", step)):
        p50_s, p95_s = (await connection.execute(statement)).one()
        if p50_s is not None:
            timings.append(PhaseTiming(name, p50_s, p95_s))
    return tuple(timings)


async def between_replies(
    connection: AsyncConnection, rollouts: Sequence[RolloutId]
) -> list[tuple[int, float]]:
    """Seconds from each stored reply to the next one of the same rollout, with that one's
    number."""
    rows = await connection.execute(
        select(CallRow.rollout_id, CallRow.number, CallRow.created_at)
        .where(CallRow.rollout_id.in_(rollouts))
        .order_by(CallRow.rollout_id, CallRow.number)
    )
    return [
        (later.number, (later.created_at - earlier.created_at).total_seconds())
        for earlier, later in pairwise(rows.all())
        if earlier.rollout_id == later.rollout_id
    ]


def _percentiles(seconds: ColumnElement[float] | InstrumentedAttribute[Any]) -> list[Any]:
    return [func.percentile_cont(share).within_group(seconds.asc()) for share in (0.5, 0.95)]
