"""Restoring an archived run into the store of this home.

Invariants: the whole archive is checked before anything is stored; a run of the name that is stored
is never touched; a restore that was interrupted is completed by the same command; nothing uses the
run until it is whole.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from cli.operations.keeping.campaign_archive import Counting
from infra.db.database import NEEDED_REVISION, Database
from infra.db.runs import campaign_rows, events, restoring
from infra.db.runs.campaign_rows import CAMPAIGNS, TASKS, ColumnKind, PlainTable
from infra.db.runs.events import Event, person
from mainspring.artifacts import layout
from mainspring.artifacts.file_digest import sha256_of
from mainspring.errors import ServiceError, UsageError
from mainspring.status import EventKind
from reports.archive import tables
from reports.archive.manifest import FILES, TABLES, ArchiveManifest

OLDEST_RESTORED = "0040"
"""Migration of the oldest archives that are read."""
ADDED_IN = {
    "events": "0041",
    **dict.fromkeys(("step_rollouts", "step_gaps", "step_tokens"), "0045"),
    **dict.fromkeys(("rollout_labels", "rollout_notes"), "0046"),
}
"""Tables that were added since, each with its migration."""
COLUMNS_ADDED_IN = {"rollouts": {"num_sampled_tokens": "0043"}}
"""Columns that were added since, each of which may be NULL."""
_ROLLOUTS = "rollouts"
_SOURCE = "source_rollout_id"
_STEP_GROUPS = "step_groups"
_GROUP = "group_id"


@dataclass(frozen=True, slots=True)
class Restored:
    manifest: ArchiveManifest
    num_files: int

    def as_dict(self) -> dict[str, object]:
        return {
            "name": self.manifest.campaign,
            "status": self.manifest.status,
            "num_rollouts": self.manifest.num_rollouts,
            "num_files": self.num_files,
        }


async def restore(db: Database, home: Path, folder: Path, counting: Counting) -> Restored:
    """Raises UsageError for an archive that is damaged or does not fit the store."""
    tables.require_pyarrow()
    await db.check_own("a restore")
    manifest = ArchiveManifest.read(folder)
    campaign, uid = manifest.campaign, manifest.uid
    _refuse_other_schema(manifest)
    await restoring.refuse_stored(db, campaign, uid)
    with counting("files checked") as progress:
        manifest.check(folder, progress)
    copied = [name for name in manifest.files if name.startswith(f"{FILES}/")]
    own = layout.campaign_folder(home, campaign)
    _refuse_other_files(manifest, own, copied)
    table_of = {table.name: table for table in _tables(manifest)}
    file = {name: folder / TABLES / f"{name}.parquet" for name in table_of}
    for rows in tables.read_table(file[TASKS], table_of[TASKS]):
        await restoring.refuse_other_tasks(db, rows)
    for rows in tables.read_table(file[_ROLLOUTS], table_of[_ROLLOUTS]):
        sources = [row[_SOURCE] for row in rows if row[_SOURCE] is not None]
        await restoring.refuse_absent_sources(db, sources)
    for rows in tables.read_table(file[_STEP_GROUPS], table_of[_STEP_GROUPS]):
        await restoring.refuse_absent_groups(db, campaign, [row[_GROUP] for row in rows])
    _copy(folder / FILES, own, copied, counting)
    for name, table in table_of.items():
        of = manifest.files[f"{TABLES}/{name}.parquet"].num_rows or 0
        with counting(f"rows of {name}") as progress:
            done = 0
            for rows in tables.read_table(file[name], table):
                if name == TASKS:
                    await restoring.put_tasks(db, table, rows)
                elif name == CAMPAIGNS:
                    await restoring.begin(db, table, rows[0])
                else:
                    await restoring.put(db, table, campaign, uid, rows)
                done += len(rows)
                progress(done, of)
    await _refuse_missing_rows(db, manifest)
    old = str(layout.campaign_folder(Path(manifest.home), campaign))
    moved = (old, str(own)) if copied and old != str(own) else None
    await restoring.complete(db, campaign, uid, moved)
    text = f"campaign restore: {campaign} restored from {folder.absolute()}"
    await events.tell(db, Event(EventKind.COMMAND, campaign, text, by=person()))
    return Restored(manifest, len(copied))


def _tables(manifest: ArchiveManifest) -> list[PlainTable]:
    """Tables and columns that the archive has: one of an earlier version lacks what was added
    since."""
    revision = manifest.schema_revision
    return [
        replace(table, columns=_columns(table, revision))
        for table in campaign_rows.tables()
        if ADDED_IN.get(table.name, "") <= revision
    ]


def _columns(table: PlainTable, revision: str) -> Mapping[str, ColumnKind]:
    added = COLUMNS_ADDED_IN.get(table.name, {})
    return {name: kind for name, kind in table.columns.items() if added.get(name, "") <= revision}


def _refuse_other_schema(manifest: ArchiveManifest) -> None:
    if not OLDEST_RESTORED <= manifest.schema_revision <= NEEDED_REVISION:
        raise UsageError(
            f"the archive is at migration {manifest.schema_revision}, this store at "
            f"{NEEDED_REVISION}",
            remedy=f"restore it with the version of Mainspring that wrote it "
            f"({manifest.mainspring}) into a home of its own, then run `mainspring db upgrade`",
        )


def _refuse_other_files(manifest: ArchiveManifest, own: Path, copied: list[str]) -> None:
    """A campaign's folder without its rows may be another one's, or what an interrupted restore
    left."""
    for name in copied:
        file = own / Path(name).relative_to(FILES)
        if file.exists() and sha256_of(file) != manifest.files[name].sha256:
            raise UsageError(
                f"{file} is there, and is not the file of the archive",
                remedy=f"move {own} away, or restore into another home",
            )


def _copy(source: Path, own: Path, copied: list[str], counting: Counting) -> None:
    if not copied:
        return
    try:
        with counting("checkpoint files") as progress:
            _copy_each(source, own, copied, progress)
    except OSError as error:
        raise ServiceError(
            f"{own} cannot be written: {error}", remedy="free space there, then repeat the command"
        ) from error


def _copy_each(
    source: Path, own: Path, copied: list[str], progress: Callable[[int, int], None]
) -> None:
    for number, name in enumerate(copied, start=1):
        below = Path(name).relative_to(FILES)
        target = own / below
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f".{target.name}.partial")
            shutil.copy2(source / below, partial)
            partial.rename(target)
        progress(number, len(copied))


async def _refuse_missing_rows(db: Database, manifest: ArchiveManifest) -> None:
    """A row that the store refused without a word would be a hole in the record."""
    for table in _tables(manifest):
        expected = manifest.files[f"{TABLES}/{table.name}.parquet"].num_rows
        number = await campaign_rows.count(db, table, manifest.campaign)
        if number != expected:
            raise ServiceError(
                f"{manifest.campaign}: {number} rows of {table.name} are stored, the archive has "
                f"{expected}",
                remedy=f"run `mainspring campaign delete {manifest.campaign}`, then restore again",
            )
