"""Chooses the pages of a copy: all of a run, or those that a report is read for.

Imported by the command line and tests.
"""

from collections.abc import Sequence

from infra.db.naming import campaign_named
from infra.db.reading import evaluations
from infra.db.runs import campaigns
from infra.db.runs.campaigns import CampaignRecord
from mainspring.ids import CampaignId, RolloutId
from mainspring.status import CampaignKind
from view.frozen.extent import Extent, FrozenRun
from view.pages.run_results import TASKS_SHOWN
from view.viewer import Viewer

ROLLOUTS = 500
"""Rollouts of each run that a copy has, unless told otherwise."""
LIST_PAGES = 40
MAX_RUNS = 50
REPORT_ROLLOUTS = 16
"""Rollouts of a run that trains: some that failed, some masked, some resolved."""
REPORT_FAILED = 500
"""Rollouts of an evaluation: all that failed, up to this number."""
REPORT_LIST_PAGES = 4
REPORT_TABS = ("turns", "patch", "tests", "times")


async def whole(viewer: Viewer, names: Sequence[str], num_rollouts: int = ROLLOUTS) -> Extent:
    """Runs with these names, or else the newest ones; `viewer` shows no others from here on. Raises
    UnknownId, DatabaseError."""
    async with viewer.part("the runs to copy") as db:
        if names:
            records = [await campaign_named(db, name) for name in names]
        else:
            records = (await campaigns.list_all(db))[:MAX_RUNS]
    runs = {record.id: await _frozen(viewer, record, num_rollouts) for record in records}
    viewer.frozen = frozenset(runs)
    return Extent(runs, LIST_PAGES)


async def for_report(viewer: Viewer, campaign: CampaignId, num_rollouts: int | None) -> Extent:
    """Raises UnknownId, DatabaseError."""
    async with viewer.part("the run of the report") as db:
        record = await campaigns.get(db, campaign)
    is_measured = _is_measured(record)
    if num_rollouts is None:
        num_rollouts = REPORT_FAILED if is_measured else REPORT_ROLLOUTS
    run = await _frozen(viewer, record, num_rollouts)
    viewer.frozen = frozenset([record.id])
    return Extent({record.id: run}, REPORT_LIST_PAGES, REPORT_TABS, has_facets=is_measured)


async def _frozen(viewer: Viewer, record: CampaignRecord, num_rollouts: int) -> FrozenRun:
    is_measured = _is_measured(record)
    async with viewer.part("the rollouts to copy") as db, db.snapshot() as connection:
        chosen = await evaluations.worth_reading(
            connection, record.id, num_rollouts, mixed=not is_measured
        )
        num_tasks = len(await evaluations.by_task(connection, record.id)) if is_measured else 0
    return FrozenRun(
        rollouts=frozenset(chosen),
        groups=frozenset(_group(rollout) for rollout in chosen),
        has_task_lists=0 < num_tasks <= TASKS_SHOWN,
    )


def _group(rollout: RolloutId) -> str:
    return rollout.rpartition("/")[0]


def _is_measured(record: CampaignRecord) -> bool:
    return record.kind not in (CampaignKind.TRAIN, CampaignKind.SFT)
