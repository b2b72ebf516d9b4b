"""One run: what it does now, its curves, how its rollouts ended, and its newest groups.

A training campaign's page is about its steps; that of an evaluation, a verification, a regrade or a
supervised run about its result (`run_results`). Imported by `pages`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from markupsafe import Markup

from infra.db import store
from infra.db.naming import campaign_named
from infra.db.reading import endings, evaluations, run_overviews
from infra.db.reading.endings import Endings
from infra.db.reading.evaluations import Evaluation
from infra.db.reading.run_overviews import GroupLine
from infra.db.reading.trained_steps import Step
from infra.db.runs import events
from infra.db.runs.campaigns import CampaignRecord
from infra.db.runs.events import EventRecord
from mainspring.config.campaign import CampaignConfig
from mainspring.ids import campaign_workflow
from mainspring.status import (
    CampaignKind,
    CampaignStatus,
    GroupStatus,
    RolloutPhase,
    Sampling,
)
from mainspring.training.watched import warnings
from mainspring.words.events import EventLine, at_steps, lines
from mainspring.words.waits import ENDED
from view.drawing.panels import PANELS, SUPERVISED, draw, panels_named
from view.drawing.plots import PlotLine, curve
from view.headlines import Headline, headlines
from view.moves import RunMoves, moves
from view.page import Page
from view.page_request import PageRequest
from view.pages.run_results import RunResults, results_of
from view.run_labels import labels
from view.run_steps import steps_of
from view.viewer import Viewer

KEPT_S = 2.0
COUNTED_S = 5.0
"""Counts read every rollout of the run."""
ENDED_KEPT_S = 60.0
"""A run that ended changes by a person's command alone."""
GROUPS_SHOWN = 12
EVENTS_SHOWN = 8
EVENTS_READ = 500
"""The newest ones: the lane below the curves has no more."""
RATES_FROM = 3
"""Steps after which the time that is left is told."""

_Oldest = tuple[str, datetime] | None


@dataclass(frozen=True, slots=True)
class CampaignPage:
    id: str
    kind: CampaignKind
    status: CampaignStatus
    error: str | None
    created_at: datetime
    finished_at: datetime | None
    now: datetime
    parent: str | None
    """The campaign that it was forked or retrained from."""
    first_version: int
    num_steps: int | None
    """Planned; None for other runs."""
    num_steps_done: int
    """Steps that are done; those of a fork count from its parent's first."""
    labels: Mapping[str, str]
    steps: Sequence[Step]
    evaluations: Sequence[Evaluation]
    main_split: str
    gap_bound: float | None
    warnings: Sequence[str]
    changes: Sequence[str]
    endings: Endings
    group_counts: Mapping[GroupStatus, int]
    phases: Mapping[RolloutPhase, int]
    oldest: _Oldest
    groups: Sequence[GroupLine]
    moves: RunMoves
    workflow: str
    events: Sequence[EventLine]
    """The newest ones, those lead."""
    lost: Mapping[float, Sequence[str]]
    """Losses and recoveries by their place among the steps."""
    results: RunResults | None

    @property
    def headlines(self) -> list[Headline]:
        return headlines(
            self.evaluations, self.steps, self.main_split, self.gap_bound, self.first_version
        )

    @property
    def is_running(self) -> bool:
        return self.status not in ENDED

    @property
    def spent_s(self) -> float:
        return ((self.finished_at or self.now) - self.created_at).total_seconds()

    @property
    def left_s(self) -> float | None:
        """Seconds until the last step, as the newest steps took; None: not known."""
        ends = [step.finished_at for step in self.steps if step.finished_at]
        if not self.is_running or self.num_steps is None or len(ends) < RATES_FROM:
            return None
        newest = ends[-10:]
        pace_s = (newest[-1] - newest[0]).total_seconds() / (len(newest) - 1)
        return max(0, self.num_steps - self.num_steps_done) * pace_s

    @property
    def curves(self) -> list[Markup]:
        """The plots that come first; those of all figures are on a page of their own."""
        rows = [step.metrics | {"step": step.step} for step in self.steps]
        if self.kind is CampaignKind.SFT:
            return [draw(panel, rows) for panel in panels_named(SUPERVISED)]
        reward, *others = [panel for panel in PANELS if panel.on_overview]
        resolved = curve(
            "Resolved",
            *self.resolved,
            at_least=1.0,
            note="Of each batch, and of evaluations with their 95 % intervals.",
        )
        bounds = {"logprob_gap_max": self.gap_bound}
        rest = [draw(panel, rows, bounds.get(panel.figures[0])) for panel in others]
        return [draw(reward, rows), resolved, *rest]

    @property
    def resolved(self) -> list[PlotLine]:
        """Share of resolved rollouts: of each batch, and of each evaluation with its interval."""
        lines = [PlotLine("batch", [(step.step, step.solve_rate) for step in self.steps])]
        kinds = dict.fromkeys((each.split, each.sampling) for each in self.evaluations)
        for split, sampling in list(kinds)[:3]:
            chosen = [
                each
                for each in self.evaluations
                if (each.split, each.sampling) == (split, sampling) and each.solve_rate is not None
            ]
            lines.append(
                PlotLine(
                    split if sampling is Sampling.SAMPLED else f"{split}, greedy",
                    [(each.version, each.solve_rate) for each in chosen],
                    marks=True,
                    band=[(each.version, *each.interval) for each in chosen],
                )
            )
        return lines


async def read(viewer: Viewer, asked: PageRequest) -> CampaignPage:
    async with viewer.part("the run") as db:
        record = await campaign_named(db, asked.path["name"])
    # A reader who has just been told of a change gets no answer from before it.
    key = ("campaign", record.id, viewer.words.get(record.id, ""))
    for_s = ENDED_KEPT_S if record.status in ENDED else KEPT_S
    return await viewer.kept(key, for_s, lambda: _read(viewer, record))


async def _read(viewer: Viewer, record: CampaignRecord) -> CampaignPage:
    config = record.config
    trains = isinstance(config, CampaignConfig)

    async def measurements() -> tuple[datetime, Sequence[Evaluation]]:
        async with viewer.part("the evaluations of the run") as db:
            now = await store.now(db)
            async with db.snapshot() as connection:
                return now, await evaluations.read(connection, record.id) if trains else ()

    async def count() -> tuple[Endings, Mapping[GroupStatus, int]]:
        async with viewer.part("how its rollouts ended") as db, db.snapshot() as connection:
            ended = await endings.read(connection, record.id)
            return ended, await endings.group_counts(connection, record.id)

    async def ends() -> tuple[Endings, Mapping[GroupStatus, int]]:
        return await viewer.kept(("endings", record.id), COUNTED_S, count)

    async def newest() -> tuple[Sequence[GroupLine], Mapping[RolloutPhase, int], _Oldest]:
        async with viewer.part("its newest groups") as db, db.snapshot() as connection:
            groups = await run_overviews.newest_groups(connection, record.id, GROUPS_SHOWN)
            phases = await run_overviews.phases(connection, record.id)
            return groups, phases, await run_overviews.oldest_playing(connection, record.id)

    async def happenings() -> Sequence[EventRecord]:
        async with viewer.part("its events") as db:
            return await events.newest(db, record.id, limit=EVENTS_READ)

    (
        (now, measured),
        steps,
        (ended, counts),
        (groups, phases, oldest),
        happened,
    ) = await asyncio.gather(
        measurements(), steps_of(viewer, record.id), ends(), newest(), happenings()
    )
    splits = config.evaluation.measured if trains else ()
    return CampaignPage(
        id=record.id,
        kind=record.kind,
        status=record.status,
        error=record.error,
        created_at=record.created_at,
        finished_at=record.finished_at,
        now=now,
        parent=None if record.parent is None else record.parent.campaign,
        first_version=record.first_version,
        num_steps=record.num_steps if trains else None,
        num_steps_done=record.num_steps_done,
        labels=labels(record),
        steps=steps,
        evaluations=measured,
        main_split=splits[0] if splits else "",
        gap_bound=config.gap_bounds.max if trains and not record.is_retrained else None,
        warnings=warnings([(step.step, step.metrics) for step in steps], config)
        if trains and not record.is_retrained
        else (),
        changes=[f"{each.line}, by {each.changed_by}" for each in record.changes],
        endings=ended,
        group_counts=counts,
        phases=phases,
        oldest=oldest,
        groups=groups,
        moves=await moves(viewer, record),
        workflow=campaign_workflow(record.id),
        events=lines(happened)[: -EVENTS_SHOWN - 1 : -1],
        lost=at_steps(happened, [(s.step, s.finished_at) for s in steps if s.finished_at]),
        results=None if trains else await results_of(viewer, record),
    )


PAGES = (Page("/c/{name}", "campaign.html.j2", read),)
