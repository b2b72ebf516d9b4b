"""Pages and figures of runs in files: `view --freeze`, and the report of a run.

Used by commands; what a copy has is decided in `view.frozen`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infra.db.connect import with_recorded_namespace
from infra.db.database import Database
from infra.stack.whole_folder import refuse_used
from mainspring.config.settings import Settings
from mainspring.ids import CampaignId
from reports.collect import collect
from reports.summary import REPORT_FILE, summary, write
from view.frozen import choosing
from view.frozen.copying import (
    FrozenCopy,
    Told,
    freeze,
    freeze_into,
    untold,
)
from view.viewer import Viewer


async def freeze_runs(
    home: Path | None, folder: Path, names: Sequence[str], num_rollouts: int, told: Told = untold
) -> FrozenCopy:
    """Raises UsageError, UnknownId, DatabaseError."""
    refuse_used(folder)
    viewer = Viewer(home)
    try:
        extent = await choosing.whole(viewer, names, num_rollouts)
        return await freeze(viewer, extent, folder, told=told)
    finally:
        await viewer.close()


async def write_report(
    db: Database,
    settings: Settings,
    campaign: CampaignId,
    directory: Path,
    num_rollouts: int | None = None,
    told: Told = untold,
) -> tuple[Path, dict[str, Any]]:
    """Write the pages, summary.json and metrics.jsonl; gives the first page and the summary.
    `num_rollouts`: whose pages it has; None: as many as the kind of run asks for. Raises UnknownId,
    DatabaseError."""
    links = await with_recorded_namespace(settings, db)
    data = await collect(db, campaign, temporal_ui=links.temporal_ui)
    viewer = Viewer(settings.home)
    try:
        extent = await choosing.for_report(viewer, campaign, num_rollouts)
        copy = await freeze_into(viewer, extent, directory, REPORT_FILE, told)
    finally:
        await viewer.close()
    write(data, directory, copy.first)
    return copy.first, summary(data, copy.first)
