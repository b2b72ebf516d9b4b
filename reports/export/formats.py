"""`rollout export`: a campaign's ended rollouts into one format.

Existing files are overwritten only when asked. A file appears when it is whole; of a folder
each file does, so an interrupted export is repeated by the same command with `force`.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from infra.db.database import Database
from mainspring.errors import UsageError
from mainspring.ids import CampaignId
from mainspring.trajectories.format import TrajectoryFormat
from reports.export.atif import write_atif
from reports.export.folders import write_folder
from reports.export.parquet import require_pyarrow, write_parquet
from reports.export.sft import write_sft
from reports.export.trajectory import Progress, Trajectory, attempts, read


@dataclass(frozen=True, slots=True)
class Exported:
    num_written: int
    num_skipped: int
    """Rollouts without a reply, which this format cannot hold."""


async def export(
    database: Database,
    campaign: CampaignId,
    out: Path,
    *,
    format: TrajectoryFormat,
    resolved: bool,
    label: str | None = None,
    limit: int | None,
    force: bool,
    progress: Progress,
) -> Exported:
    """Raises UsageError before anything is made."""
    _check(out, format, force)
    chosen = await attempts(database, campaign, resolved=resolved, label=label, limit=limit)
    if not chosen:
        labelled = "" if label is None else f" with the label {label}"
        raise UsageError(
            f"campaign {campaign} has no {'resolved' if resolved else 'ended'} rollout{labelled} "
            "to export",
            remedy=f"`mainspring rollout list {campaign}` shows them"
            + ("; --all takes those that are not resolved too" if resolved else ""),
        )
    trajectories = read(database, campaign, chosen, progress)
    match format:
        case TrajectoryFormat.PARQUET:
            written = await write_parquet(trajectories, out)
        case TrajectoryFormat.SFT:
            written = await write_sft(_played(trajectories), out)
        case TrajectoryFormat.ATIF:
            written = await _write_each(_played(trajectories), out, write_atif)
        case TrajectoryFormat.FOLDERS:
            written = await _write_each(trajectories, out, write_folder)
    return Exported(written, len(chosen) - written)


async def _played(trajectories: AsyncIterator[Trajectory]) -> AsyncIterator[Trajectory]:
    """Without those that have no reply: chats and ATIF cannot hold an empty conversation."""
    async for trajectory in trajectories:
        if trajectory.replies:
            yield trajectory


async def _write_each(
    trajectories: AsyncIterator[Trajectory], out: Path, write: Callable[[Trajectory, Path], Path]
) -> int:
    written = 0
    async for trajectory in trajectories:
        write(trajectory, out)
        written += 1
    return written


def _check(out: Path, format: TrajectoryFormat, force: bool) -> None:
    if format is TrajectoryFormat.PARQUET:
        require_pyarrow()
    if format.is_one_file and out.is_dir():
        raise UsageError(f"{out} is a folder", remedy=f"{format} is one file: name it")
    if not format.is_one_file and out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file", remedy=f"{format} writes into a folder: name one")
    in_the_way = any(out.iterdir()) if out.is_dir() else out.exists()
    if in_the_way and not force:
        raise UsageError(
            f"{out} exists" + (" and is not empty" if out.is_dir() else ""),
            remedy="choose another path, or overwrite it with --force",
        )
