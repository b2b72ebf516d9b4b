"""Archiving an ended run: its rows as parquet files, and its checkpoints where that is asked for.

Invariants: all tables are read as of one moment; the archive appears under its name when it is
complete; memory is bounded. What the run shares (the content of its tasks) is archived with it.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import mainspring
from cli.operations.keeping import kept_files
from infra.db.database import NEEDED_REVISION, Database
from infra.db.naming import campaign_named
from infra.db.runs import campaign_rows, campaigns, events
from infra.db.runs.campaigns import CampaignRecord
from infra.db.runs.events import Event, person
from infra.db.store import identity
from infra.db.training import policies
from infra.db.training.policies import PolicyRecord
from infra.stack.whole_folder import whole_folder
from mainspring.artifacts import layout
from mainspring.artifacts.file_digest import sha256_of
from mainspring.artifacts.retention import Checkpoints
from mainspring.errors import UsageError
from mainspring.status import CampaignStatus, EventKind
from reports.archive import tables
from reports.archive.manifest import (
    FILES,
    TABLES,
    ArchivedVersion,
    ArchiveManifest,
    archived_file,
)

Counting = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]
"""Shows the progress of what it is called with."""


@dataclass(frozen=True, slots=True)
class Archived:
    manifest: ArchiveManifest
    folder: Path
    num_bytes: int

    def as_dict(self) -> dict[str, object]:
        return {
            "name": self.manifest.campaign,
            "folder": str(self.folder),
            "num_rollouts": self.manifest.num_rollouts,
            "num_bytes": self.num_bytes,
            "versions": [version.model_dump() for version in self.manifest.versions],
        }


async def archive(
    db: Database, home: Path, name: str, out: Path, checkpoints: Checkpoints, counting: Counting
) -> Archived:
    """Raises UnknownId, and UsageError while the run has not ended, when `out` holds something, or
    a version that is to be copied is not on this machine."""
    tables.require_pyarrow()
    await db.check_own("an archive")
    record = await campaign_named(db, name)
    _refuse(record)
    versions = await policies.list_policies(db, record.id)
    copied = kept_files.chosen(versions, checkpoints)
    if checkpoints is Checkpoints.ALL:
        copied = [
            policy for policy in copied if layout.policy(home, record.id, policy.version).exists()
        ]
    _refuse_absent(home, record, copied)
    with whole_folder(out) as folder:
        manifest = ArchiveManifest(
            campaign=record.id,
            uid=record.uid,
            kind=record.kind,
            status=record.status,
            schema_revision=NEEDED_REVISION,
            mainspring=mainspring.__version__,
            store=await identity(db),
            home=str(home),
            archived_at=datetime.now(UTC).isoformat(timespec="seconds"),
            num_rollouts=0,
            versions=[_version(home, record, policy, copied) for policy in versions],
        )
        await _write_tables(db, record, folder, manifest, counting)
        if copied:
            files = list(kept_files.files_of(home, record.id, copied))
            with counting("checkpoint files") as progress:
                kept_files.copy(files, folder / FILES, progress)
            for _, below in files:
                path = Path(FILES) / below
                manifest.files[str(path)] = archived_file(folder / path)
        manifest.write(folder)
    text = f"campaign archive: {record.id} archived in {out.absolute()}"
    # Of no campaign: it is told also when the campaign is deleted.
    await events.tell(db, Event(EventKind.COMMAND, record.id, text, by=person()))
    size = sum(file.num_bytes for file in manifest.files.values())
    return Archived(manifest, out, size)


async def _write_tables(
    db: Database,
    record: CampaignRecord,
    folder: Path,
    manifest: ArchiveManifest,
    counting: Counting,
) -> None:
    (folder / TABLES).mkdir()
    stored_tables = campaign_rows.tables()
    async with db.snapshot() as connection:
        manifest.num_rollouts = await campaign_rows.num_rollouts(connection, record.id)
        for table in stored_tables:
            name = f"{TABLES}/{table.name}.parquet"
            with counting(f"rows of {table.name}") as progress:
                rows = campaign_rows.read(connection, table, record.id)
                num = await tables.write_table(folder / name, table, _shown(rows, progress))
            manifest.files[name] = archived_file(folder / name, num)


async def _shown(
    batches: AsyncIterator[Sequence[Sequence[Any]]], progress: Callable[[int, int], None]
) -> AsyncIterator[Sequence[Sequence[Any]]]:
    num = 0
    async for rows in batches:
        num += len(rows)
        progress(num, num)
        yield rows


def _version(
    home: Path, record: CampaignRecord, version: PolicyRecord, copied: Sequence[PolicyRecord]
) -> ArchivedVersion:
    identity_file = layout.policy(home, record.id, version.version) / layout.MANIFEST
    return ArchivedVersion(
        version=version.version,
        uid=version.uid,
        path=version.path,
        checkpoint=version.checkpoint,
        identity_sha256=sha256_of(identity_file) if identity_file.exists() else None,
        is_copied=version in copied,
    )


def _refuse(record: CampaignRecord) -> None:
    campaigns.refuse_incomplete(record.id, record.incomplete)
    if record.status not in (*campaigns.ENDS, CampaignStatus.CREATED):
        raise UsageError(
            f"campaign {record.id} is {record.status.value}: its rows still change",
            remedy=f"wait for its end, or run `mainspring campaign cancel {record.id}` first",
        )


def _refuse_absent(home: Path, record: CampaignRecord, copied: Sequence[PolicyRecord]) -> None:
    for policy in copied:
        folder = layout.policy(home, record.id, policy.version)
        if not folder.exists():
            raise UsageError(
                f"campaign {record.id}: version {policy.version} is not on this machine: {folder}",
                remedy="archive on the machine of its trainer, or with --checkpoints none",
            )
