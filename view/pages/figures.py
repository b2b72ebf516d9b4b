"""All figures of a run: a plot for each that a step has, and tables of what a report is read for.

Imported by `pages`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from infra.db.naming import campaign_named
from infra.db.reading import (
    agents,
    bundles,
    endings,
    evaluations,
    fingerprints,
    task_sets,
    timings,
    trained_steps,
)
from infra.db.reading.agents import AgentFigures
from infra.db.reading.evaluations import CheckedGap
from infra.db.reading.task_sets import SetFigures
from infra.db.reading.timings import NEWEST, PhaseTiming
from infra.db.runs.campaigns import CampaignRecord
from mainspring.artifacts.reproducibility import CampaignFingerprint
from mainspring.config.campaign import CampaignConfig
from mainspring.config.run import RunConfig
from mainspring.ids import RolloutId
from mainspring.status import CampaignKind
from mainspring.words.waits import ENDED
from reports.metrics import StepFigures, lines
from view.drawing.panels import SECTIONS, Rows, draw, own_panels
from view.page import Page
from view.page_request import PageRequest
from view.run_steps import steps_of
from view.viewer import Viewer

KEPT_S = 10.0
ENDED_KEPT_S = 60.0
SUSPECTS_SHOWN = 50


@dataclass(frozen=True, slots=True)
class FiguresPage:
    campaign: str
    kind: CampaignKind
    rows: Rows
    """Lines of metrics.jsonl, one for each step."""
    gap_bound: float | None
    checked_gaps: Sequence[CheckedGap]
    timings: Sequence[PhaseTiming]
    replaced: Mapping[str, int]
    """Groups that were replaced because nothing in them could be trained, by reason."""
    agents: Sequence[AgentFigures]
    sets: Sequence[SetFigures]
    suspects: Sequence[tuple[RolloutId, int]]
    """With their policy versions."""
    fingerprint: CampaignFingerprint | None
    """None: the campaign is not reproducible."""
    bundles: Mapping[str, int]
    """Rollouts by the SHA-256 of the bundle that their program ran from."""

    @property
    def num_timed(self) -> int:
        """Newest rollouts that the timings are of, at most."""
        return NEWEST

    @property
    def sections(self) -> list[tuple[str, list[Markup]]]:
        """Titles, and the plots that there is something to draw of."""
        found = [
            (title, [draw(panel, self.rows, self._shown(panel.figures)) for panel in panels])
            for title, panels in SECTIONS.items()
        ]
        own = [draw(each, self.rows) for each in own_panels(self.rows)]
        found.append(("StepFigures of its own", own))
        return [(title, [plot for plot in plots if plot]) for title, plots in found if any(plots)]

    def _shown(self, figures: Sequence[str]) -> float | None:
        return self.gap_bound if "logprob_gap_max" in figures else None


async def read(viewer: Viewer, asked: PageRequest) -> FiguresPage:
    async with viewer.part("the run") as db:
        record = await campaign_named(db, asked.path["name"])
    for_s = ENDED_KEPT_S if record.status in ENDED else KEPT_S
    return await viewer.kept(("figures", record.id), for_s, lambda: _read(viewer, record))


async def _read(viewer: Viewer, record: CampaignRecord) -> FiguresPage:
    config = record.config
    campaign = config if isinstance(config, CampaignConfig) else None

    async def batches() -> tuple[Rows, Sequence[CheckedGap]]:
        steps = await steps_of(viewer, record.id)
        async with viewer.part("what its steps were trained on") as db, db.snapshot() as connection:
            figures = StepFigures(
                record.id,
                steps,
                await trained_steps.lengths(connection, record.id),
                () if record.rescores else await trained_steps.compositions(connection, record.id),
            )
            return list(lines(figures)), await evaluations.checked_gaps(connection, record.id)

    async def spent() -> tuple[Sequence[PhaseTiming], Mapping[str, int]]:
        async with viewer.part("where its time went") as db, db.snapshot() as connection:
            untrained = await endings.replaced_batches(connection, record.id)
            return await timings.read(connection, record.id), untrained

    (rows, gaps), (took, replaced) = await asyncio.gather(batches(), spent())
    async with viewer.part("who played it") as db:
        async with db.snapshot() as connection:
            played = isinstance(config, RunConfig)
            by = await agents.by_agent(connection, record.id, config) if played else ()
            sets = await task_sets.by_set(connection, record.id, campaign) if campaign else ()
            suspects = await endings.suspects(connection, record.id, SUSPECTS_SHOWN)
            ran_from = await bundles.read(connection, record.id)
        reproducible = campaign is not None and campaign.batches is not None
        fingerprint = await fingerprints.read(db, record) if reproducible else None
    return FiguresPage(
        campaign=record.id,
        kind=record.kind,
        rows=rows,
        gap_bound=campaign.gap_bounds.max if campaign and not record.is_retrained else None,
        checked_gaps=gaps,
        timings=took,
        replaced=replaced,
        agents=by,
        sets=sets,
        suspects=suspects,
        fingerprint=fingerprint,
        bundles=ran_from,
    )


PAGES = (Page("/c/{name}/figures", "figures.html.j2", read),)
