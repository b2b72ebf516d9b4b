"""A campaign's figures in the store to `ReportData`.

Invariants: the figures are read in one snapshot, so those of a running campaign agree with each
other; what a query gives is a matter of `infra.db.reading`, and nothing here is SQL.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from infra.db import store
from infra.db.database import Database
from infra.db.reading import (
    agents,
    bundles,
    endings,
    evaluations,
    task_sets,
    trained_steps,
)
from infra.db.reading.endings import Endings
from infra.db.reading.evaluations import CheckedGap
from infra.db.reading.judge_warnings import warnings_of_all
from infra.db.reading.trained_steps import Step
from infra.db.runs import campaigns, events
from infra.db.runs.campaigns import CampaignRecord
from infra.db.training import policies
from mainspring.artifacts.reproducibility import CampaignFingerprint
from mainspring.config.campaign import CampaignConfig
from mainspring.config.run import RunConfig
from mainspring.config.sft import SftConfig
from mainspring.ids import CampaignId
from mainspring.status import GroupStatus
from mainspring.training.watched import warnings
from reports.data import ReportData, Supervised, Totals

REASONS_SHOWN = 3
"""Newest reasons for which batches were replaced."""
EVENTS_SHOWN = 200
"""Newest events of a report."""


async def collect(
    database: Database, campaign: CampaignId, *, temporal_ui: str = "", of_steps: bool = True
) -> ReportData:
    """`of_steps`: with lengths and compositions of each step, which cost as much as all the rest of
    a long campaign. Raises UnknownId."""
    record = await campaigns.get(database, campaign)
    config = record.config
    evaluated = config.evaluation.measured if isinstance(config, CampaignConfig) else ()
    main_split = evaluated[0] if evaluated else "heldout"
    now = await store.now(database)
    wall_s = ((record.finished_at or now) - record.created_at).total_seconds()
    async with database.snapshot() as connection:
        measured = await evaluations.read(connection, campaign)
        gaps = await evaluations.checked_gaps(connection, campaign)
        steps = await trained_steps.read(connection, campaign)
        lengths, compositions = (), ()
        if of_steps:
            lengths = await trained_steps.lengths(connection, campaign)
            compositions = await trained_steps.compositions(connection, campaign)
        ended = await endings.read(connection, campaign)
        groups = await endings.group_counts(connection, campaign)
        replaced = await endings.replaced_turns(connection, campaign)
        ran_from = await bundles.read(connection, campaign)
        untrained = await endings.replaced_batches(connection, campaign)
        played_by = (
            await agents.by_agent(connection, campaign, config)
            if isinstance(config, RunConfig)
            else ()
        )
        of_sets = (
            await task_sets.by_set(connection, campaign, config)
            if isinstance(config, CampaignConfig)
            else ()
        )
        happened = await events.read(connection, campaign, limit=EVENTS_SHOWN)
    reproducible = isinstance(config, CampaignConfig) and config.batches is not None
    return ReportData(
        campaign=campaign,
        status=record.status,
        seed=config.seed,
        made_at=now,
        temporal_ui=temporal_ui,
        totals=_totals(ended, groups, replaced, steps, gaps, wall_s),
        evaluations=measured,
        main_split=main_split,
        steps=steps,
        lengths=lengths,
        # Of another reward the store has no parts: they are computed for the trainer alone.
        compositions=tuple(replace(each, parts={}) for each in compositions)
        if record.rescores
        else compositions,
        stop_reasons=ended.stop_reasons,
        verdicts=ended.verdicts,
        faults=ended.faults,
        agents=played_by,
        sets=of_sets,
        suspicions=ended.suspicions,
        bundles=ran_from,
        fingerprint=await _fingerprint(database, record) if reproducible else None,
        supervised=await _supervised(database, record),
        warnings=_warnings(record, steps, untrained),
        parent=record.parent,
        changes=record.changes,
        events=tuple(happened),
        judge_warnings=await warnings_of_all(
            database, campaign, config, is_over=record.finished_at is not None
        ),
    )


def _warnings(
    record: CampaignRecord, steps: Sequence[Step], untrained: Mapping[str, int]
) -> tuple[str, ...]:
    """`untrained`: groups that were replaced because nothing in them could be trained, by
    reason. Of stored batches a gap is no fault: it tells how far off-policy they are."""
    config = record.config
    if not isinstance(config, CampaignConfig):
        return ()
    if record.is_retrained:
        steps = [replace(step, metrics=_without_gap(step.metrics)) for step in steps]
    replaced = [f"{num} groups were replaced: {reason}" for reason, num in untrained.items()]
    shown_reasons = replaced[:REASONS_SHOWN]
    return (*warnings([(step.step, step.metrics) for step in steps], config), *shown_reasons)


def _without_gap(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: value for name, value in metrics.items() if not name.startswith("logprob_gap")}


async def _fingerprint(database: Database, record: CampaignRecord) -> CampaignFingerprint:
    from infra.db.reading import fingerprints  # it loads numpy

    return await fingerprints.read(database, record)


async def _supervised(database: Database, record: CampaignRecord) -> Supervised | None:
    if not isinstance(record.config, SftConfig):
        return None
    from infra.db.training import sft  # it loads numpy

    data = await sft.data_of(database, record.id)
    newest = await policies.latest_policy(database, record.id)
    num_steps = record.config.trainer.steps_of(data.num_samples)
    return Supervised(data, num_steps, None if newest is None else newest.path)


def _totals(
    ended: Endings,
    groups: Mapping[GroupStatus, int],
    replaced: tuple[int, int],
    steps: Sequence[Step],
    checked: Sequence[CheckedGap],
    wall_s: float,
) -> Totals:
    # A step whose tokens were all sampled under older weights measured nothing.
    measured = [step for step in steps if step.num_gap_tokens]
    gaps = [step.logprob_gap_max for step in measured if step.logprob_gap_max is not None]
    gaps += [gap.gap_max for gap in checked]
    return Totals(
        num_steps=len(steps),
        num_rollouts=ended.num_rollouts,
        num_turns=ended.num_turns,
        wall_s=wall_s,
        max_logprob_gap=max(gaps, default=None),
        num_gap_tokens=sum(gap.num_tokens for gap in checked)
        + sum(step.num_gap_tokens or 0 for step in measured),
        num_suspicious=ended.num_suspicious,
        num_groups_masked=groups[GroupStatus.MASKED],
        num_groups_flat=groups[GroupStatus.FLAT],
        replaced_turns_share=replaced[0] / replaced[1] if replaced[1] else None,
    )
