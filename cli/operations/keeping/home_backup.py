"""A backup of a home with the embedded stack, also while campaigns run.

Invariants: Temporal's database is copied first, then the store, then files, so that each is as old
as the next one or older: a workflow that is behind the store does again what the store has, once,
while one that is ahead of it would wait for what is not there; every version that the store names
as the newest has its files in the backup; the backup appears under its name when it is complete.
"""

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

import mainspring
from cli.operations.keeping import kept_files
from cli.operations.keeping.campaign_archive import Counting
from cli.operations.machine import embedded_stack
from infra.db import store
from infra.db.database import NEEDED_REVISION, Database
from infra.db.training import policies
from infra.db.training.policies import PolicyRecord
from infra.stack import postgres_dump
from infra.stack.postgres_server import Postgres
from infra.stack.temporal_server import Temporal
from infra.stack.whole_folder import whole_folder
from mainspring.artifacts import layout
from mainspring.artifacts.retention import Checkpoints
from mainspring.config.settings import configured_settings
from mainspring.errors import ServiceError, UsageError
from reports.archive.manifest import BackupManifest, archived_file

TEMPORAL_FILE = "temporal.db"
POSTGRES_FILE = "postgres.dump"
CAMPAIGNS_FOLDER = "campaigns"
REPORTS_FOLDER = "reports"
TRIES = 3
"""A version may be replaced by a newer one while its files are copied."""


@dataclass(frozen=True, slots=True)
class BackedUp:
    manifest: BackupManifest
    folder: Path
    num_bytes: int

    def as_dict(self) -> dict[str, object]:
        return {
            "folder": str(self.folder),
            "store": self.manifest.store,
            "num_bytes": self.num_bytes,
            "versions": self.manifest.versions,
        }


class _Pruned(Exception):
    """A file went while it was copied."""


def refuse_configured(home: Path, verb: str) -> None:
    """Raises UsageError where the services are not the embedded ones."""
    configured = configured_settings(home)
    for name, value in (
        ("MAINSPRING_DATABASE_URL", configured.database_url),
        ("MAINSPRING_TEMPORAL_ADDRESS", configured.temporal_address),
    ):
        if value:
            raise UsageError(
                f"{name} is set, and `mainspring {verb}` is for the embedded services of a home",
                remedy="use the tools of your own services, Temporal's database first: see "
                "docs/operations.md, Keep and move",
            )


async def backup(home: Path, out: Path, checkpoints: Checkpoints, counting: Counting) -> BackedUp:
    """Raises UsageError when there is no store or `out` holds something."""
    refuse_configured(home, "backup")
    if not (home / "postgres").exists():
        raise UsageError(
            f"{home} holds no embedded store", remedy="give the folder of one with --home"
        )
    if out.absolute().is_relative_to(home):
        raise UsageError(f"{out} is inside of {home}", remedy="give a folder elsewhere")
    was_down = Postgres(home).daemon.pid() is None
    if was_down:
        await embedded_stack.up(home)
    try:
        for _ in range(TRIES):
            try:
                return await _backup(home, out, checkpoints, counting)
            except _Pruned:
                continue
        raise ServiceError(
            "versions were replaced by newer ones while their files were copied, each time",
            remedy="pause the campaign (`mainspring campaign pause NAME`), or raise "
            "trainer.keep_checkpoints",
        )
    finally:
        if was_down:
            await embedded_stack.down(home)


async def _backup(home: Path, out: Path, checkpoints: Checkpoints, counting: Counting) -> BackedUp:
    postgres = Postgres(home)
    with whole_folder(out) as folder:
        await asyncio.to_thread(_copy_temporal, home, folder / TEMPORAL_FILE)
        async with Database.open(postgres.url, pool_size=2) as db:
            await db.check()
            revision = await db.revision()
            id, namespace = await store.identity(db), await store.namespace(db)
            async with db.snapshot() as connection:
                versions = await policies.list_all(connection)

                async def dump(snapshot: str) -> None:
                    file = folder / POSTGRES_FILE
                    await asyncio.to_thread(postgres_dump.dump, postgres, file, snapshot)

                await store.in_snapshot(connection, dump)
        copied = await asyncio.to_thread(_copy_files, home, folder, versions, checkpoints, counting)
        manifest = BackupManifest(
            mainspring=mainspring.__version__,
            schema_revision=revision or NEEDED_REVISION,
            home=str(home),
            store=id,
            namespace=namespace or "",
            backed_up_at=datetime.now(UTC).isoformat(timespec="seconds"),
            versions=copied,
        )
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        with counting("files digested") as progress:
            for number, file in enumerate(files, start=1):
                manifest.files[str(file.relative_to(folder))] = archived_file(file)
                progress(number, len(files))
        manifest.write(folder)
    return BackedUp(manifest, out, sum(entry.num_bytes for entry in manifest.files.values()))


def _copy_temporal(home: Path, into: Path) -> None:
    """One moment of the server's database, whether it runs or not."""
    source = Temporal(home).database
    if not source.exists():
        return
    try:
        with (
            closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as live,
            closing(sqlite3.connect(into)) as copy,
        ):
            live.backup(copy)
    except sqlite3.Error as error:
        raise ServiceError(
            f"{source} cannot be copied: {error}", remedy="run `mainspring doctor`"
        ) from None


def _copy_files(
    home: Path,
    folder: Path,
    versions: Sequence[PolicyRecord],
    checkpoints: Checkpoints,
    counting: Counting,
) -> dict[str, list[int]]:
    """The versions whose files were copied, by campaign."""
    copied: dict[str, list[int]] = {}
    files: list[tuple[Path, Path]] = []
    for campaign, of_campaign in groupby(versions, key=lambda policy: policy.campaign):
        own = layout.campaign_folder(home, campaign)
        if checkpoints is Checkpoints.NONE or not own.exists():
            continue
        chosen = kept_files.chosen(list(of_campaign), checkpoints)
        here = [
            policy for policy in chosen if layout.policy(home, campaign, policy.version).exists()
        ]
        if checkpoints is Checkpoints.NEWEST and here != chosen:
            raise _Pruned
        copied[campaign] = [policy.version for policy in here]
        below = own.relative_to(home)
        files += [(file, below / rest) for file, rest in kept_files.files_of(home, campaign, here)]
    reports = home / REPORTS_FOLDER
    files += [(path, path.relative_to(home)) for path in reports.rglob("*") if path.is_file()]
    with counting("files") as progress:
        try:
            kept_files.copy(files, folder, progress)
        except FileNotFoundError:
            raise _Pruned from None
    return copied
