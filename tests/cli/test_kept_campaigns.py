"""`campaign archive`, `restore` and `delete` on real services: killed, and with bad input, too."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
from sqlalchemy import text

from cli.operations.keeping.campaign_restore import COLUMNS_ADDED_IN
from cli.operations.machine.embedded_stack import StackInfo
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.tables.models import Base
from mainspring.artifacts import layout
from mainspring.artifacts.file_digest import sha256_of
from mainspring.ids import CampaignId
from mainspring.status import CampaignStatus
from reports.archive.manifest import MANIFEST_FILE, TABLES, ArchiveManifest
from tests.infra.db.store_records import add_ready_group, begin_campaign

NAME = CampaignId("kept")
NUM_BULK = 1500
"""Rollouts: a command that is killed when the first have gone is in the middle."""
BULK = """
INSERT INTO rollouts (id, group_id, campaign_id, task_id, sample_index, temperature, phase)
SELECT :group || '/b' || n, :group, :name, 'train-0', 1000 + n, 1, 'done'
FROM generate_series(1, :num) n
"""
BULK_CALLS = """
INSERT INTO executions (rollout_id, epoch, call, index, command, state)
SELECT :group || '/b' || n, 0, c, 0, repeat('x', 500), 'done'
FROM generate_series(1, :num) n, generate_series(1, 4) c
"""


@pytest.fixture
async def home(stack: StackInfo) -> AsyncIterator[Path]:
    async with Database.open(stack.database_url) as db:
        await begin_campaign(db, NAME)
        group = await add_ready_group(db, 0, NAME)
        of = {"group": group, "name": NAME, "num": NUM_BULK}
        async with db.transaction() as connection:
            await connection.execute(text(BULK), of)
            del of["name"]
            await connection.execute(text(BULK_CALLS), of)
        await campaigns.set_status(db, NAME, CampaignStatus.CANCELLED)
        version = layout.policy(stack.home, NAME, 0)
        version.mkdir(parents=True, exist_ok=True)
        (version / "checkpoint.json").write_text("{}")
        yield stack.home
        if await campaigns.find(db, NAME) is not None:
            await mainspring(stack.home, "campaign", "delete", NAME, "--yes")


async def test_archive_delete_restore(stack: StackInfo, home: Path, tmp_path: Path) -> None:
    before = await digests(stack)
    shown = json.loads(await mainspring(home, "campaign", "show", NAME, "--json"))
    archived = tmp_path / "archive"
    await mainspring(home, "campaign", "archive", NAME, str(archived), "--checkpoints", "newest")
    told = await mainspring(home, "campaign", "delete", NAME, "--yes")
    assert f"deleted {NAME}: {NUM_BULK + 2} rollouts" in told
    assert not layout.campaign_folder(home, NAME).exists()
    assert (await digests(stack))["rollouts"] is None
    await mainspring(home, "campaign", "restore", str(archived))
    assert await digests(stack) == before
    assert (layout.policy(home, NAME, 0) / "checkpoint.json").read_text() == "{}"
    again = json.loads(await mainspring(home, "campaign", "show", NAME, "--json"))
    happened = [event["text"] for event in again.pop("events")]
    before_it = [event["text"] for event in shown.pop("events")]
    assert again == shown
    # Its own are restored with it; the commands are told of whatever became of it.
    assert happened[: len(before_it)] == before_it and f"{NAME} was cancelled" in before_it
    assert [text.partition(":")[0] for text in happened[len(before_it) :]] == [
        "campaign archive",
        "campaign delete",
        "campaign restore",
    ]
    told = await refused(home, "campaign", "restore", str(archived))
    assert "is stored already" in told
    # What searches read is no part of an archive: it is made again.
    await mainspring(home, "db", "reindex", "--missing")
    found = json.loads(await mainspring(home, "rollout", "search", f"campaign:{NAME}", "--json"))
    assert found["num_rollouts"] == 2


def without_columns(
    archive: Path, manifest: ArchiveManifest, table: str, names: Iterable[str]
) -> None:
    """As an earlier release has written it."""
    from pyarrow import parquet

    name = f"{TABLES}/{table}.parquet"
    file = archive / name
    parquet.write_table(parquet.read_table(file).drop_columns(list(names)), file)
    manifest.files[name] = manifest.files[name].model_copy(
        update={"sha256": sha256_of(file), "num_bytes": file.stat().st_size}
    )


async def test_an_archive_of_before_there_were_events_is_restored(
    home: Path, tmp_path: Path
) -> None:
    whole = tmp_path / "archive"
    await mainspring(home, "campaign", "archive", NAME, str(whole))
    await mainspring(home, "campaign", "delete", NAME, "--yes")
    manifest = ArchiveManifest.read(whole).model_copy(update={"schema_revision": "0040"})
    file = f"{TABLES}/events.parquet"
    assert manifest.files.pop(file).num_rows
    (whole / file).unlink()
    without_columns(whole, manifest, "rollouts", COLUMNS_ADDED_IN["rollouts"])
    (whole / MANIFEST_FILE).write_text(manifest.signed().model_dump_json())
    await mainspring(home, "campaign", "restore", str(whole))
    document = json.loads(await mainspring(home, "campaign", "show", NAME, "--json"))
    assert document["num_rollouts"] == NUM_BULK + 2
    assert not any(event["kind"] == "campaign_status" for event in document["events"])


async def test_killed_in_the_middle_and_repeated(
    stack: StackInfo, home: Path, tmp_path: Path
) -> None:
    before = await digests(stack)
    archived = tmp_path / "archive"
    archive = ("campaign", "archive", NAME, str(archived))
    await killed(home, archive, lambda: _exists(tmp_path / ".archive.partial" / TABLES))
    assert not archived.exists()
    await mainspring(home, *archive)
    assert [each.name for each in tmp_path.iterdir()] == ["archive"]

    delete = ("campaign", "delete", NAME, "--yes")
    await killed(home, delete, lambda: _num_below(stack, NUM_BULK))
    assert 0 < await num_rollouts(stack) < NUM_BULK
    assert "is being deleted" in await refused(home, "campaign", "archive", NAME, f"{tmp_path}/b")
    assert "is being deleted" in await mainspring(home, "campaign", "show", NAME)
    await mainspring(home, *delete)
    assert await num_rollouts(stack) == 0

    restore = ("campaign", "restore", str(archived))
    await killed(home, restore, lambda: _any_rollouts(stack))
    assert "is being restored" in await mainspring(home, "campaign", "show", NAME)
    await mainspring(home, *restore)
    assert await digests(stack) == before


async def test_two_deletes_at_once(stack: StackInfo, home: Path) -> None:
    first, second = await asyncio.gather(
        *(run(home, "campaign", "delete", NAME, "--yes") for _ in range(2))
    )
    for code, out in (first, second):
        assert code == 0 or f"no campaign {NAME} is stored" in out, out
    assert 0 in (first[0], second[0])
    assert await num_rollouts(stack) == 0


async def test_bad_archives_restore_nothing(home: Path, tmp_path: Path) -> None:
    whole = tmp_path / "archive"
    await mainspring(home, "campaign", "archive", NAME, str(whole))
    await mainspring(home, "campaign", "delete", NAME, "--yes")
    calls = f"{TABLES}/calls.parquet"

    def cut(folder: Path) -> None:
        os.truncate(folder / calls, (folder / calls).stat().st_size - 4)

    def changed(folder: Path) -> None:
        content = bytearray((folder / calls).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / calls).write_bytes(content)

    def edited(folder: Path) -> None:
        manifest = folder / MANIFEST_FILE
        manifest.write_text(manifest.read_text().replace("cancelled", "finished"))

    def other_schema(folder: Path) -> None:
        manifest = ArchiveManifest.read(folder).model_copy(update={"schema_revision": "0001"})
        (folder / MANIFEST_FILE).write_text(manifest.signed().model_dump_json())

    for number, (spoil, told) in enumerate(
        (
            (cut, f"bytes of {calls}"),
            (changed, f"altered file {calls}"),
            (lambda folder: (folder / calls).unlink(), f"lacks the file {calls}"),
            (edited, "was edited"),
            (other_schema, "at migration 0001"),
            (lambda folder: (folder / MANIFEST_FILE).unlink(), "holds no archive"),
        )
    ):
        copy = tmp_path / f"bad-{number}"
        shutil.copytree(whole, copy)
        spoil(copy)
        assert told in await refused(home, "campaign", "restore", str(copy))
        assert "no campaign kept" in await refused(home, "campaign", "show", NAME)


async def test_names_folders_and_states_that_do_not_fit(
    stack: StackInfo, home: Path, tmp_path: Path
) -> None:
    full, file = tmp_path / "full", tmp_path / "file"
    full.mkdir()
    file.touch()
    (full / "x").touch()
    archive = ("campaign", "archive", NAME)
    assert "is not empty" in await refused(home, *archive, str(full))
    assert "is a file" in await refused(home, *archive, str(file))
    assert "cannot be written" in await refused(home, *archive, "/proc/archive", code=3)
    out = str(tmp_path / "out")
    assert "no campaign nope" in await refused(home, "campaign", "archive", "nope", out)
    assert "no campaign nope" in await refused(home, "campaign", "delete", "nope", "--yes")
    assert "add --yes" in await refused(home, "campaign", "delete", NAME)
    async with Database.open(stack.database_url) as db:
        await campaigns.set_status(db, NAME, CampaignStatus.CREATED)
        async with db.transaction() as connection:
            await connection.execute(text("UPDATE campaigns SET status = 'running'"))
        assert "is running" in await refused(home, *archive, out)
        async with db.transaction() as connection:
            await connection.execute(text("UPDATE campaigns SET status = 'failed'"))


async def mainspring(home: Path, *words: str) -> str:
    """The output of a command that succeeds."""
    code, out = await run(home, *words)
    assert code == 0, out
    return out


async def refused(home: Path, *words: str, code: int = 2) -> str:
    found, out = await run(home, *words)
    assert found == code, out
    assert "Traceback" not in out
    return out


async def run(home: Path, *words: str) -> tuple[int | None, str]:
    process = await _started(home, *words)
    out, _ = await process.communicate()
    return process.returncode, out.decode()


async def killed(home: Path, words: tuple[str, ...], when) -> None:
    process = await _started(home, *words)
    while not await when() and process.returncode is None:
        await asyncio.sleep(0)
    assert process.returncode is None, (await process.communicate())[0].decode()
    process.send_signal(signal.SIGKILL)
    await process.wait()


async def _started(home: Path, *words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mainspring", *words, "--home", str(home)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


async def digests(stack: StackInfo) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    async with Database.open(stack.database_url) as db, db.transaction() as connection:
        for table in Base.metadata.sorted_tables:
            # Other tests share the store.
            if "campaign_id" in table.columns:
                mine = "campaign_id = :name"
            elif "rollout_id" in table.columns:
                mine = "rollout_id LIKE :name || '/%'"
            elif table.name == "campaigns":
                mine = "id = :name"
            else:
                continue
            rows = f"SELECT md5(string_agg(t::text, '|' ORDER BY t::text)) FROM \"{table.name}\" t"
            found[table.name] = await connection.scalar(
                text(f"{rows} WHERE {mine}"), {"name": NAME}
            )
    return found


async def num_rollouts(stack: StackInfo) -> int:
    async with Database.open(stack.database_url) as db, db.transaction() as connection:
        mine = text("SELECT count(*) FROM rollouts WHERE campaign_id = :name")
        return await connection.scalar(mine, {"name": NAME}) or 0


async def _exists(path: Path) -> bool:
    return path.exists()


async def _num_below(stack: StackInfo, num: int) -> bool:
    return await num_rollouts(stack) < num


async def _any_rollouts(stack: StackInfo) -> bool:
    return await num_rollouts(stack) > 0
