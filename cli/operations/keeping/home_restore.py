"""Restoring a backup into a home: a new one, or one that is stopped.

Invariants: the whole backup is checked before the home is touched; a home whose services or workers
run is refused, with what runs there; what was there is set aside, never deleted; until the restore
is complete the services do not start, and the same command completes one that was interrupted;
files belong to whom they must, as the database is made anew.
"""

import asyncio
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cli.operations.keeping import kept_files
from cli.operations.keeping.campaign_archive import Counting
from cli.operations.keeping.home_backup import (
    CAMPAIGNS_FOLDER,
    POSTGRES_FILE,
    REPORTS_FOLDER,
    TEMPORAL_FILE,
    refuse_configured,
)
from cli.operations.machine.home_processes import working_in
from infra.db.database import NEEDED_REVISION, Database
from infra.db.nodes import sandboxes
from infra.db.runs import restoring
from infra.stack import home as homes
from infra.stack import postgres_dump
from infra.stack.postgres_server import Postgres
from infra.stack.temporal_server import Temporal
from mainspring.config.settings import STACK_FILE
from mainspring.errors import ServiceError, UsageError
from migrations.upgrade import upgrade
from reports.archive.manifest import BackupManifest

_PIECES = (
    *("postgres", "postgres.password", STACK_FILE),
    *(TEMPORAL_FILE, f"{TEMPORAL_FILE}-wal", f"{TEMPORAL_FILE}-shm"),
    *(CAMPAIGNS_FOLDER, REPORTS_FOLDER),
)
"""All that a restore brings."""


@dataclass(frozen=True, slots=True)
class RestoredHome:
    manifest: BackupManifest
    home: Path
    set_aside: Path | None

    def as_dict(self) -> dict[str, object]:
        return {
            "home": str(self.home),
            "store": self.manifest.store,
            "backed_up_at": self.manifest.backed_up_at,
            "versions": self.manifest.versions,
            "set_aside": None if self.set_aside is None else str(self.set_aside),
        }


async def restore(home: Path, folder: Path, *, replace: bool, counting: Counting) -> RestoredHome:
    """Raises UsageError for a backup that is damaged or newer than this program, and for a home
    that is in use, or holds a store and is not to be replaced."""
    refuse_configured(home, "restore")
    manifest = BackupManifest.read(folder)
    if int(manifest.schema_revision) > int(NEEDED_REVISION):
        raise UsageError(
            f"the backup is at migration {manifest.schema_revision}, this program knows "
            f"{NEEDED_REVISION}",
            remedy=f"use the version of Mainspring that wrote it ({manifest.mainspring}), or a "
            "newer one",
        )
    _refuse_in_use(home)
    is_again = (home / homes.RESTORING).exists()
    there = list(_pieces(home))
    if there and not replace and not is_again:
        raise UsageError(
            f"{home} holds {', '.join(path.name for path in there[:3])}",
            remedy="give an empty folder with --home, or add --replace: what it holds is set aside",
        )
    with counting("files checked") as progress:
        await asyncio.to_thread(manifest.check, folder, progress)
    try:
        return await _restore(home, folder, manifest, counting)
    except OSError as error:
        raise ServiceError(
            f"{home} cannot be written: {error}", remedy="free space there, then repeat the command"
        ) from error


async def _restore(
    home: Path, folder: Path, manifest: BackupManifest, counting: Counting
) -> RestoredHome:
    homes.make(home)
    async with homes.locked(home):
        _refuse_in_use(home)
        aside = await asyncio.to_thread(_clear, home)
        postgres = Postgres(home)
        try:
            url = await asyncio.to_thread(postgres.start)
            await asyncio.to_thread(postgres_dump.load, postgres, folder / POSTGRES_FILE)
            await asyncio.to_thread(upgrade, url)
            async with Database.open(url, pool_size=1) as db:
                # No process of theirs is in a backup: each is built again from the store.
                await sandboxes.lose_all(db)
                if str(home) != manifest.home:
                    async with db.transaction() as connection:
                        await restoring.move_paths(connection, manifest.home, str(home))
        finally:
            await asyncio.to_thread(postgres.stop)
        if TEMPORAL_FILE in manifest.files:
            await asyncio.to_thread(shutil.copy2, folder / TEMPORAL_FILE, Temporal(home).database)
        tops = (f"{CAMPAIGNS_FOLDER}/", f"{REPORTS_FOLDER}/")
        files = [(folder / name, Path(name)) for name in manifest.files if name.startswith(tops)]
        with counting("files") as progress:
            await asyncio.to_thread(kept_files.copy, files, home, progress)
        (home / homes.RESTORING).unlink()
    return RestoredHome(manifest, home, aside)


def _refuse_in_use(home: Path) -> None:
    if running := working_in(home):
        more = f", and {len(running) - 1} more work there" if len(running) > 1 else ""
        raise UsageError(
            f"process {running[0].pid} {running[0].told} in {home}{more}",
            remedy="stop it first: Ctrl-C there, `kill PROCESS`, or for a campaign `mainspring "
            "train --name NAME --stop`",
        )
    services = [s.daemon for s in (Temporal(home), Postgres(home)) if s.daemon.pid() is not None]
    if services:
        raise UsageError(
            f"{services[0].name} runs in {home} (process {services[0].pid()})",
            remedy=f"run `mainspring down --home {home}` first",
        )


def _clear(home: Path) -> Path | None:
    """Set aside what the home holds, or remove what an interrupted restore left; the folder with
    what was set aside."""
    marker = home / homes.RESTORING
    if marker.exists():
        state = json.loads(marker.read_text())
        aside, is_aside = home / state["aside"], state["is_aside"]
    else:
        aside, is_aside = _free_name(home), not any(_pieces(home))
        homes.write_private(marker, json.dumps({"aside": aside.name, "is_aside": is_aside}))
    if is_aside:
        for piece in _pieces(home):
            _remove(piece)
    else:
        aside.mkdir(exist_ok=True)
        for piece in _pieces(home):
            piece.rename(aside / piece.name)
        homes.write_private(marker, json.dumps({"aside": aside.name, "is_aside": True}))
    return aside if aside.exists() else None


def _pieces(home: Path) -> Iterator[Path]:
    for name in _PIECES:
        piece = home / name
        if piece.exists() or piece.is_symlink():
            yield piece


def _free_name(home: Path) -> Path:
    number = 1
    while (folder := home / f"replaced-{number}").exists():
        number += 1
    return folder


def _remove(piece: Path) -> None:
    if piece.is_symlink():
        shutil.rmtree(piece.resolve(), ignore_errors=True)
        piece.unlink()
    elif piece.is_dir():
        shutil.rmtree(piece)
    else:
        piece.unlink()
