"""A campaign's rows in Postgres to `ReportData`.

Invariants: the numbers are read in one snapshot, so those of a running campaign agree with each
other; an evaluation counts only when all its rollouts have ended; nothing is written.
"""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Float, Integer, Row, cast, func, select, text, true
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import InstrumentedAttribute

from infra.db import campaigns
from infra.db.database import Database
from infra.db.models import (
    CallRow,
    ExecutionRow,
    GroupRow,
    PolicyVersionRow,
    RolloutRow,
    StepGroupRow,
    StepRow,
)
from mainspring.config.any_run import AnyRun
from mainspring.config.campaign import CampaignConfig
from mainspring.ids import CampaignId
from mainspring.status import ExecutionState, GroupKind, GroupStatus, StepStatus
from reports.data import Evaluation, Lengths, PhaseTiming, ReportData, Step, Totals
from reports.reward_parts import compositions, scored_by_step, suspicion_counts, suspicious
from reports.trajectories import DONE, RESOLVED, SCORED, trajectory, worth_reading

_PHASES = ("open", "generate", "execute", "restore", "grade")
"""In the order a rollout goes through them; others follow by name."""


async def collect(
    database: Database,
    campaign: CampaignId,
    *,
    temporal_ui: str = "",
    temporal_namespace: str = "default",
) -> ReportData:
    """Raises UnknownId."""
    record = await campaigns.get(database, campaign)
    config = record.config
    evaluated = config.evaluation.splits if isinstance(config, CampaignConfig) else ()
    main_split = evaluated[0] if evaluated else "heldout"
    now = datetime.now(UTC)
    wall_s = ((record.finished_at or now) - record.created_at).total_seconds()
    async with database.transaction() as connection:
        await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
        evaluations = await _evaluations(connection, campaign)
        steps = await _steps(connection, campaign)
        num_suspicious, suspicions = await suspicion_counts(connection, campaign)
        totals = await _totals(connection, campaign, steps, wall_s, num_suspicious)
        checked_gaps = await connection.execute(
            select(PolicyVersionRow.version, PolicyVersionRow.logprob_gap_max)
            .where(
                PolicyVersionRow.campaign_id == campaign,
                PolicyVersionRow.logprob_gap_max.is_not(None),
            )
            .order_by(PolicyVersionRow.version)
        )
        gaps = tuple((version, gap) for version, gap in checked_gaps)
        lengths = await _lengths(connection, campaign)
        timings = await _timings(connection, campaign)
        stop_reasons = await _counts(connection, campaign, RolloutRow.stop_reason)
        verdicts = await _counts(connection, campaign, RolloutRow.verdict)
        composed = await compositions(connection, campaign)
        chosen = await worth_reading(connection, campaign, main_split)
        chosen += [each for each in await suspicious(connection, campaign) if each not in chosen]
    return ReportData(
        campaign=campaign,
        status=record.status,
        seed=config.seed,
        made_at=now,
        config=_labels(config),
        temporal_ui=temporal_ui,
        temporal_namespace=temporal_namespace,
        totals=totals,
        logprob_gap_limit=config.gap_bounds.max if isinstance(config, CampaignConfig) else None,
        evaluations=evaluations,
        main_split=main_split,
        steps=steps,
        lengths=lengths,
        compositions=composed,
        timings=timings,
        stop_reasons=stop_reasons,
        verdicts=verdicts,
        checked_gaps=gaps,
        suspicions=suspicions,
        trajectories=tuple([await trajectory(database, *each) for each in chosen]),
    )


def _labels(config: AnyRun) -> dict[str, str]:
    shared = {"model": config.policy.model, "tasks": config.tasks.source}
    if not isinstance(config, CampaignConfig):
        return shared
    trainer = config.trainer
    return shared | {
        "steps": str(trainer.num_steps),
        "batch": f"{trainer.groups_per_step} groups of {trainer.group_size}",
        "staleness": f"at most {trainer.max_staleness}",
        "optimizer": trainer.optimizer.name.value,
    }


async def _evaluations(connection: AsyncConnection, campaign: CampaignId) -> tuple[Evaluation, ...]:
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


async def _steps(connection: AsyncConnection, campaign: CampaignId) -> tuple[Step, ...]:
    resolved = func.count().filter(RESOLVED)
    scored = func.count().filter(SCORED)
    by_group = (
        select(
            StepGroupRow.step,
            resolved.label("resolved"),
            scored.label("scored"),
            func.count().filter(~SCORED).label("masked"),
        )
        .join(RolloutRow, RolloutRow.group_id == StepGroupRow.group_id)
        .where(StepGroupRow.campaign_id == campaign)
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
        .where(StepRow.campaign_id == campaign, StepRow.status == StepStatus.DONE)
        .order_by(StepRow.step)
    )
    return tuple(_step(row) for row in rows)


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
        loss=metrics.get("loss"),
        kl=metrics.get("kl"),
        clip_fraction=metrics.get("clip_fraction"),
        logprob_gap_max=metrics.get("logprob_gap_max"),
        num_gap_tokens=whole("num_gap_tokens"),
        train_s=metrics.get("seconds"),
        lr=metrics.get("lr"),
        staleness_mean=metrics.get("staleness_mean"),
        all_zero_groups=row.all_zero,
        all_one_groups=row.all_one,
        masked_rollouts=row.masked,
        metrics=dict(metrics),
        finished_at=row.finished_at,
    )


async def _totals(
    connection: AsyncConnection,
    campaign: CampaignId,
    steps: tuple[Step, ...],
    wall_s: float,
    num_suspicious: int,
) -> Totals:
    num_rollouts, num_turns = (
        await connection.execute(
            select(
                func.count().filter(DONE),
                func.coalesce(func.sum(RolloutRow.num_turns).filter(DONE), 0),
            ).where(RolloutRow.campaign_id == campaign)
        )
    ).one()
    checked_gap, checked_tokens = (
        await connection.execute(
            select(
                func.max(PolicyVersionRow.logprob_gap_max),
                func.coalesce(func.sum(PolicyVersionRow.num_gap_tokens), 0),
            ).where(PolicyVersionRow.campaign_id == campaign)
        )
    ).one()
    by_status = await connection.execute(
        select(GroupRow.status, func.count())
        .where(GroupRow.campaign_id == campaign, GroupRow.kind == GroupKind.TRAIN)
        .group_by(GroupRow.status)
    )
    replaced = {row[0]: row[1] for row in by_status}
    # A step whose tokens were all sampled under older weights measured nothing.
    measured = [step for step in steps if step.num_gap_tokens]
    gaps = [step.logprob_gap_max for step in measured if step.logprob_gap_max is not None]
    if checked_gap is not None:
        gaps.append(checked_gap)
    return Totals(
        num_steps=len(steps),
        num_rollouts=num_rollouts,
        num_turns=int(num_turns),
        wall_s=wall_s,
        max_logprob_gap=max(gaps, default=None),
        num_gap_tokens=int(checked_tokens) + sum(step.num_gap_tokens or 0 for step in measured),
        num_suspicious=num_suspicious,
        num_groups_masked=replaced.get(GroupStatus.MASKED, 0),
        num_groups_flat=replaced.get(GroupStatus.FLAT, 0),
    )


async def _lengths(connection: AsyncConnection, campaign: CampaignId) -> tuple[Lengths, ...]:
    bytes_per_token = 4  # infra.db.columns packs tokens as int32
    tokens = (
        select(
            func.coalesce(func.sum(func.octet_length(CallRow.completion_ids, type_=Integer)), 0)
            / bytes_per_token
        )
        .where(CallRow.rollout_id == RolloutRow.id, CallRow.epoch == RolloutRow.epoch)
        .scalar_subquery()
    )
    rows = await connection.execute(
        scored_by_step(
            campaign,
            cast(func.avg(RolloutRow.num_turns), Float),
            cast(func.avg(tokens), Float),
        )
        .group_by(StepGroupRow.step)
        .order_by(StepGroupRow.step)
    )
    return tuple(Lengths(*row) for row in rows)


async def _timings(connection: AsyncConnection, campaign: CampaignId) -> tuple[PhaseTiming, ...]:
    """Phases as a rollout sees them, queueing included; then one reply, one command, one step."""
    phase = func.jsonb_each_text(RolloutRow.phase_s).table_valued("key", "value").alias("phase")
    seconds = cast(phase.c.value, Float)
    by_phase = await connection.execute(
        select(phase.c.key, func.count(), *_percentiles(seconds))
        .select_from(RolloutRow)
        .join(phase, true())
        .where(RolloutRow.campaign_id == campaign, DONE, phase.c.value.is_not(None))
        .group_by(phase.c.key)
    )
    of_campaign = RolloutRow.campaign_id == campaign
    replies = (
        select(func.count(), *_percentiles(CallRow.latency_s))
        .join(RolloutRow, RolloutRow.id == CallRow.rollout_id)
        .where(of_campaign)
    )
    commands = (
        select(func.count(), *_percentiles(ExecutionRow.wall_s))
        .join(RolloutRow, RolloutRow.id == ExecutionRow.rollout_id)
        .where(of_campaign, ExecutionRow.state == ExecutionState.DONE)
    )
    step_seconds = StepRow.metrics["seconds"].as_float()
    step = select(func.count(), *_percentiles(step_seconds)).where(
        StepRow.campaign_id == campaign, StepRow.status == StepStatus.DONE
    )
    order = {name: position for position, name in enumerate(_PHASES)}
    timings = sorted(
        (PhaseTiming(*row) for row in by_phase),
        key=lambda each: (order.get(each.phase, len(order)), each.phase),
    )
    for name, statement in (("one reply", replies), ("one command", commands), ("one step", step)):
        count, p50_s, p95_s = (await connection.execute(statement)).one()
        if p50_s is not None:
            timings.append(PhaseTiming(name, count, p50_s, p95_s))
    return tuple(timings)


def _percentiles(seconds: ColumnElement[float] | InstrumentedAttribute[Any]) -> list[Any]:
    return [func.percentile_cont(share).within_group(seconds.asc()) for share in (0.5, 0.95)]


async def _counts(
    connection: AsyncConnection, campaign: CampaignId, column: InstrumentedAttribute[Any]
) -> dict[str, int]:
    rows = await connection.execute(
        select(column, func.count())
        .where(RolloutRow.campaign_id == campaign, column.is_not(None))
        .group_by(column)
    )
    return {word.value: number for word, number in rows}
