"""`mainspring events`, and events in `campaign show` and the report, at 80 columns."""

import asyncio
import json
import os
import pty
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli import events as events_command
from cli.campaign import campaign
from cli.events import app
from infra.db.database import Database
from infra.db.runs import campaigns, events
from infra.db.runs.events import Event, EventRecord
from mainspring.errors import UsageError
from mainspring.ids import CampaignId
from mainspring.status import CampaignStatus, EventKind
from mainspring.words.events import lines
from tests.infra.db.store_records import begin_campaign
from tests.terminal import printed_to
from tests.waiting import until

NAME = CampaignId("a-campaign-with-a-long-name-of-32-")
ROLLOUT = f"{NAME}/r000017/003"


@pytest.fixture
async def store(
    db: Database, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Database:
    """A campaign to which something happened, in the database that the commands use."""
    monkeypatch.setenv("MAINSPRING_DATABASE_URL", store_url)
    monkeypatch.setenv("MAINSPRING_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    await begin_campaign(db, NAME)
    await campaigns.set_status(db, NAME, CampaignStatus.RUNNING)
    await events.tell(db, Event(EventKind.NODE_BEGAN, "b", "node b began, took over 12 sandboxes"))
    for number in range(3):
        rollout = f"{NAME}/r000017/00{number + 1}"
        text = f"sandbox of rollout {rollout} rebuilt on node b: 4 commands run again"
        await events.tell(db, Event(EventKind.SANDBOX_REBUILT, rollout, text, NAME))
    await events.tell(db, Event(EventKind.COMMAND, NAME, "campaign pause", NAME, "ann@head"))
    return db


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


async def test_events_are_listed_with_the_newest_last(store: Database) -> None:
    shown = (await asyncio.to_thread(run, NAME)).splitlines()
    assert [line[21:] for line in shown] == [
        f"{NAME} started",
        "node b began, took over 12 sandboxes",
        f"3 sandboxes rebuilt, the last: sandbox of rollout {ROLLOUT} rebuilt on node b: 4 "
        "commands run again",
        "ann@head: campaign pause",
    ]
    assert datetime.fromisoformat(f"{shown[0][:19]}Z") <= datetime.now(UTC)
    of_kind = await asyncio.to_thread(run, NAME, "--kind", "command", "--kind", "node_began")
    assert len(of_kind.splitlines()) == 2
    assert await asyncio.to_thread(run, "--limit", "1") == "\n".join([shown[-1], ""])
    assert len((await asyncio.to_thread(run, "--since", "1h")).splitlines()) == 4


async def test_json_has_every_event_whole(store: Database) -> None:
    found = json.loads(await asyncio.to_thread(run, NAME, "--json"))
    assert [each["kind"] for each in found] == [
        "campaign_status",
        "node_began",
        *["sandbox_rebuilt"] * 3,
        "command",
    ]
    assert found[-1] == {
        "id": found[-1]["id"],
        "at": found[-1]["at"],
        "last_at": found[-1]["at"],
        "count": 1,
        "campaign": NAME,
        "kind": "command",
        "subject": NAME,
        "text": "campaign pause",
        "by": "ann@head",
        "data": {},
    }


async def test_a_campaign_that_was_deleted_is_still_told_of(store: Database) -> None:
    text = "campaign delete: gone and its 4 rollouts deleted"
    await events.tell(store, Event(EventKind.COMMAND, "gone", text, by="ann@head"))
    assert text in await asyncio.to_thread(run, "gone")
    with pytest.raises(UsageError, match="no campaign gonne is stored"):
        await asyncio.to_thread(run, "gonne")


@pytest.mark.parametrize("since", ["soon", "2 weeks", "-1h", "999999999d", ""])
def test_a_wrong_time_is_refused(since: str) -> None:
    with pytest.raises(UsageError, match=f"--since {since} is no time"):
        CliRunner().invoke(app, ["--since", since], catch_exceptions=False)


async def test_ids_stay_whole_on_a_terminal_of_80_columns(
    store: Database, store_url: str, tmp_path: Path
) -> None:
    master, slave = pty.openpty()
    environment = os.environ | {"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "mainspring", "events", NAME]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=slave, stderr=subprocess.PIPE, env=environment
    )
    os.close(slave)
    printing = asyncio.to_thread(printed_to, master)
    shown, (_, errors) = await asyncio.wait_for(asyncio.gather(printing, process.communicate()), 90)
    assert process.returncode == 0, errors.decode()
    assert ROLLOUT in shown
    assert max(map(len, shown.splitlines())) <= 80


async def test_followed_events_are_printed_once(store: Database, tmp_path: Path) -> None:
    out = tmp_path / "followed"
    with out.open("w") as file:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mainspring", "events", NAME, "--follow", "--limit", "1"),
            stdout=file,
            stderr=file,
        )
    try:
        await until(lambda: "campaign pause" in out.read_text(), 60)
        event = Event(EventKind.JUDGE_FAILED, "style", "judge style: no vote", NAME)
        await events.tell(store, event)
        await until(lambda: "judge style: no vote\n" in out.read_text())
        await events.tell(store, event)
        await until(lambda: "(2 times until" in out.read_text())
        await asyncio.sleep(2 * events_command.FOLLOW_S)
        process.send_signal(2)
        assert await asyncio.wait_for(process.wait(), 120) == 0
    finally:
        if process.returncode is None:
            process.kill()
    assert len(out.read_text().splitlines()) == 3, out.read_text()


async def test_campaign_show_ends_its_head_with_the_newest_events(store: Database) -> None:
    def show(*arguments: str) -> str:
        result = CliRunner().invoke(campaign.app, ["show", NAME, *arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    shown = [line for line in (await asyncio.to_thread(show)).splitlines() if "event  " in line]
    assert [line.split("  ")[-1][:30] for line in shown] == [
        f"{NAME} started"[:30],
        "node b began, took over 12 san",
        "3 sandboxes rebuilt, the last:",
        "ann@head: campaign pause",
    ]
    document = json.loads(await asyncio.to_thread(show, "--json"))
    assert [each["kind"] for each in document["events"]][-1] == "command"
    assert len(document["events"]) == 6


def record(kind: EventKind, at: datetime, text: str = "<script>") -> EventRecord:
    return EventRecord(text, at, at, 1, NAME, kind.value, "x", text, "host pid 1", {})


def test_a_kind_of_a_newer_version_is_shown() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    newer = EventRecord("1", at, at, 2, NAME, "of_later", "x", "it rained", "host pid 1", {})
    assert [line.text for line in lines([newer])] == ["it rained (2 times until 00:00:00)"]
