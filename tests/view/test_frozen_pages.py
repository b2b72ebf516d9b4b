"""Copies of pages: complete, closed in themselves, and never half-made."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest
from told_campaign import NAME, tell
from viewed import Told, add_evaluation, home_of, play, wrong_in

from infra.db.database import Database
from infra.db.fence import UnknownId
from infra.db.runs import campaigns
from infra.stack.whole_folder import refuse_used
from mainspring.errors import DatabaseError, UsageError
from mainspring.ids import CampaignId
from mainspring.status import CampaignStatus, Verdict
from view.frozen import choosing
from view.frozen.copying import file_name, freeze, freeze_into
from view.viewer import Viewer

HOSTILE = "</pre><script>alert(1)</script> href=\"/c/told\" <a href='/c/told'>x</a>"


@asynccontextmanager
async def viewer_at(folder: Path, store_url: str) -> AsyncIterator[Viewer]:
    viewer = Viewer(home_of(folder / "home", store_url))
    yield viewer
    await viewer.close()


def pages_of(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.html")}


def broken_links(folder: Path) -> list[str]:
    """Links of pages that lead to no file, or out of the copy."""
    broken = []
    for name, text in pages_of(folder).items():
        for link in re.findall(r' (?:href|src)="([^"]*)"', text):
            target = unquote(unescape(link)).partition("#")[0]
            if target.startswith("http") or not target:
                continue
            path = ((folder / name).parent / target).resolve()
            if not path.is_file() or folder.resolve() not in path.parents:
                broken.append(f"{name}: {link}")
    return broken


async def test_a_copy_of_a_campaign_is_closed_in_itself(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await tell(db)
    await add_evaluation(db, "another", ["one"])
    copy = tmp_path / "copy"
    async with viewer_at(tmp_path, store_url) as viewer:
        extent = await choosing.whole(viewer, [NAME])
        counted: list[tuple[int, int]] = []
        made = await freeze(viewer, extent, copy, told=lambda *pair: counted.append(pair))
    pages = pages_of(copy)
    assert made.first == copy / "index.html" and made.num_pages == len(pages) == counted[-1][0]
    assert counted[-1][0] == counted[-1][1]
    assert broken_links(copy) == []
    whole = "".join(pages.values())
    assert "data-live" not in whole and "/search" not in whole and ">another<" not in whole
    first = pages["index.html"]
    assert "<style>" in first and "Resolved" in first, "it can be sent alone"
    # Each rollout that ended has its pages, among them the masked one.
    for rollout in (f"{NAME}/g000000/000", f"{NAME}/eval-v0000-heldout-sampled/003"):
        for tab in ("", "?tab=patch", "?tab=tests", "?tab=tokens"):
            assert f"pages/{file_name(f'/r/{rollout}{tab}')}" in pages, (rollout, tab)
    assert [path.name for path in tmp_path.glob(".freezing-*")] == []


async def test_what_a_model_wrote_makes_no_link(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    [rollout] = await add_evaluation(db, "hostile", ["one"])
    told = Told(reply=HOSTILE, command=HOSTILE, output=HOSTILE.encode(), tests=HOSTILE)
    await play(db, rollout, told, verdict=Verdict.NOT_RESOLVED)
    await tell(db)
    async with viewer_at(tmp_path, store_url) as viewer:
        extent = await choosing.whole(viewer, ["hostile", NAME])
        await freeze(viewer, extent, tmp_path / "copy")
    assert broken_links(tmp_path / "copy") == []
    text = pages_of(tmp_path / "copy")[f"pages/{file_name(f'/r/{rollout}')}"]
    assert "alert(1)&lt;/script&gt;" in text
    assert not [each for each in wrong_in(text) if each.startswith(("<", "a on"))]


async def test_the_report_of_an_evaluation_has_all_that_failed(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    made = await add_evaluation(db, "measured", ["solved", "failed", "broken"])
    await play(db, made[0], Told())
    await play(db, made[1], Told(note="one test fails"), verdict=Verdict.NOT_RESOLVED)
    await play(db, made[2], Told(fault="execute: SandboxLost: gone"), verdict=Verdict.FAULT)
    await campaigns.set_status(db, CampaignId("measured"), CampaignStatus.FINISHED)
    report = tmp_path / "report"
    async with viewer_at(tmp_path, store_url) as viewer:
        extent = await choosing.for_report(viewer, CampaignId("measured"), 2)
        await freeze_into(viewer, extent, report, "report.html")
    pages = pages_of(report)
    first = pages["report.html"]
    assert "pass@1, 2 tasks" in first and "50 % " in first and "SandboxLost" in first
    assert "tokens" in first, "what it spent"
    for rollout, is_there in zip(made, (False, True, True), strict=True):
        assert (f"pages/{file_name(f'/r/{rollout}')}" in pages) is is_there
    assert broken_links(report) == []


async def test_a_report_replaces_the_one_before_and_nothing_else(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await tell(db)
    report = tmp_path / "report"
    report.mkdir()
    (report / "summary.json").write_text("{}")
    for _ in range(2):
        async with viewer_at(tmp_path, store_url) as viewer:
            extent = await choosing.for_report(viewer, NAME, 1)
            await freeze_into(viewer, extent, report, "report.html")
        (report / "pages" / "old.html").touch()
    names = {path.name for path in report.iterdir()}
    assert names == {"report.html", "pages", "summary.json"}
    (report / "pages" / "old.html").unlink()
    assert broken_links(report) == []


async def test_a_folder_that_is_used_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    used = tmp_path / "used"
    used.mkdir()
    (used / "mine").touch()
    file = tmp_path / "file"
    file.touch()
    for folder in (used, file):
        with pytest.raises(UsageError, match=r"is not empty|is a file"):
            refuse_used(folder)
    empty = tmp_path / "empty"
    empty.mkdir()
    refuse_used(empty)
    refuse_used(tmp_path / "new")


async def test_a_copy_that_fails_leaves_nothing(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await tell(db)
    async with viewer_at(tmp_path, store_url) as viewer:
        extent = await choosing.whole(viewer, [NAME])

        def gone(done: int, of: int) -> None:
            if done == 3:
                raise DatabaseError("the store is away")

        with pytest.raises(DatabaseError):
            await freeze(viewer, extent, tmp_path / "copy", told=gone)
        with pytest.raises(UnknownId, match="absent"):
            await choosing.whole(viewer, ["absent"])
        assert {path.name for path in tmp_path.iterdir()} == {"home"}
        # Another command was faster: what it made stays.
        (tmp_path / "copy").mkdir()

        def faster(done: int, of: int) -> None:
            (tmp_path / "copy" / "index.html").write_text("of another")

        with pytest.raises(UsageError, match="is not empty"):
            await freeze(viewer, extent, tmp_path / "copy", told=faster)
    assert (tmp_path / "copy" / "index.html").read_text() == "of another"


async def test_a_campaign_that_is_deleted_meanwhile_is_told(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    async with viewer_at(tmp_path, store_url) as viewer:
        await tell(db)
        extent = await choosing.whole(viewer, [NAME])
        other = home_of(tmp_path / "elsewhere", store_url)
        assert other.is_dir()
        renamed = choosing.Extent({CampaignId("gone"): next(iter(extent.runs.values()))}, 1)
        with pytest.raises(DatabaseError, match="/c/gone"):
            await freeze(viewer, renamed, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_two_addresses_never_share_a_file() -> None:
    names = {
        file_name(address) for address in ("/c/a-b", "/c/a/b", "/c/a%20b", "/c/A-b", "/c/a-b?")
    }
    assert len(names) == 5
    long = file_name("/r/" + "x" * 5000)
    assert len(long) < 120 and long.endswith(".html")
