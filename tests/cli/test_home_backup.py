"""`mainspring backup` and `mainspring restore`: a home with its stack, live, killed, and unfit."""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text

from cli.operations.machine import embedded_stack
from cli.operations.machine.home_processes import working_in
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.stack import home as homes
from infra.stack.postgres_server import Postgres
from mainspring.artifacts import layout
from mainspring.ids import CampaignId
from mainspring.status import CampaignStatus
from reports.archive.manifest import MANIFEST_FILE, BackupManifest
from tests.cli.test_kept_campaigns import killed, mainspring, refused
from tests.infra.db.store_records import add_ready_group, begin_campaign

NAME = CampaignId("kept")


@pytest.fixture
async def folder() -> AsyncIterator[Path]:
    """Others may pass but not look: root's Postgres runs as `nobody`, inside this folder."""
    made = Path(tempfile.mkdtemp(prefix="mainspring-backup-"))
    made.chmod(0o711)
    yield made
    for home in made.iterdir():
        if (home / "lock").exists():
            await embedded_stack.down(home)
    shutil.rmtree(made)


@pytest.fixture
async def home(folder: Path) -> Path:
    """With one campaign that has a version."""
    made = folder / "home"
    info = await embedded_stack.up(made)
    async with Database.open(info.database_url) as db:
        await begin_campaign(db, NAME)
        await add_ready_group(db, 0, NAME)
        await campaigns.set_status(db, NAME, CampaignStatus.CANCELLED)
        version = layout.policy(made, NAME, 0)
        async with db.transaction() as connection:
            paths = {"path": f"{version}/hf", "checkpoint": str(version)}
            statement = "UPDATE policy_versions SET path = :path, checkpoint = :checkpoint"
            await connection.execute(text(statement), paths)
    (version / "hf").mkdir(parents=True)
    (version / "hf" / "weights").write_bytes(os.urandom(1000))
    return made


async def test_backed_up_live_restored_elsewhere_and_over_itself(home: Path, folder: Path) -> None:
    kept = folder / "kept"
    shown = await mainspring(home, "campaign", "show", NAME, "--json")
    told = await mainspring(home, "backup", str(kept))
    assert f"{NAME}: files of versions 0" in told
    assert "is not empty" in await refused(home, "backup", str(kept))

    other = folder / "other"
    await mainspring(other, "restore", str(kept))
    weights = layout.policy(other, NAME, 0) / "hf" / "weights"
    assert weights.read_bytes() == (layout.policy(home, NAME, 0) / "hf" / "weights").read_bytes()
    await mainspring(other, "up")
    assert same(await mainspring(other, "campaign", "show", NAME, "--json"), shown)
    async with Database.open(Postgres(other).url) as db, db.transaction() as connection:
        path = await connection.scalar(text("SELECT path FROM policy_versions"))
    assert path == str(weights.parent)

    assert "runs in" in await refused(home, "restore", str(kept), "--replace")
    await mainspring(home, "down")
    assert "add --replace" in await refused(home, "restore", str(kept))
    told = await mainspring(home, "restore", str(kept), "--replace")
    assert "replaced-1" in told and (home / "replaced-1" / "postgres").exists()
    await mainspring(home, "up")
    assert same(await mainspring(home, "campaign", "show", NAME, "--json"), shown)


async def test_a_restore_that_is_killed_is_repeated(home: Path, folder: Path) -> None:
    kept, other = folder / "kept", folder / "other"
    await mainspring(home, "backup", str(kept))

    async def is_loading() -> bool:
        return (other / "postgres.password").exists()

    await killed(other, ("restore", str(kept)), is_loading)
    assert (other / homes.RESTORING).exists()
    assert "half restored" in await refused(other, "up")
    await mainspring(other, "restore", str(kept))
    await mainspring(other, "up")
    assert NAME in await mainspring(other, "campaign", "list")


async def test_what_cannot_be_restored_is_named_and_nothing_is_touched(
    home: Path, folder: Path
) -> None:
    kept, other = folder / "kept", folder / "other"
    await mainspring(home, "backup", str(kept), "--checkpoints", "none")
    await mainspring(home, "down")

    with (home / "run" / "train-kept.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(str(os.getpid()))
        lock.flush()
        [here] = [each for each in working_in(home) if each.pid == os.getpid()]
        assert (here.run, here.told) == ("kept", "runs kept")
        told = await refused(home, "restore", str(kept), "--replace")
        assert f"process {os.getpid()} runs kept" in told

    cut = folder / "cut"
    shutil.copytree(kept, cut)
    os.truncate(cut / "postgres.dump", 100)
    assert "100 bytes of postgres.dump" in await refused(other, "restore", str(cut))
    newer = folder / "newer"
    shutil.copytree(kept, newer)
    manifest = BackupManifest.read(newer).model_copy(update={"schema_revision": "9999"})
    (newer / MANIFEST_FILE).write_text(manifest.signed().model_dump_json())
    assert "at migration 9999" in await refused(other, "restore", str(newer))
    await mainspring(home, "up")
    assert "another kind of folder" in await refused(home, "campaign", "restore", str(kept))
    assert "holds no backup" in await refused(other, "restore", str(folder))
    assert not other.exists()
    assert "holds no embedded store" in await refused(other, "backup", str(folder / "b"))
    assert "is inside of" in await refused(home, "backup", str(home / "b"))


def same(shown: str, before: str) -> bool:
    found, expected = json.loads(shown), json.loads(before)
    # Addresses and the folder are the home's own.
    return all(
        found[key] == expected[key] for key in expected if key not in ("report", "temporal_ui")
    )
