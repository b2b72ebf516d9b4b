"""Text from elsewhere is neither markup nor steers a terminal, on whatever screen it stands."""

import asyncio
import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cli.tables import Screen, Table
from cli.terminal_text import drawn, echo, plain
from infra.db.runs.campaign_record import Parent
from infra.db.runs.events import EventRecord
from mainspring.config.files.changes import FieldChange
from mainspring.ids import CampaignId
from mainspring.status import CampaignStatus, GroupKind, Player, RolloutPhase, StopReason, Verdict
from tests.terminal import printed_to

HOSTILE = (
    "mount [/data] [red]b[/] [link=http://x]c ::x:: :warning: mainspring[train] "
    "\x1b[2J\x1b]0;title\x07\x1b]8;;http://evil\x1b\\d\x9b1m\x9d8;;http://evil\x9c"
    "\x1b(B\x1bc\rend\u202ereversed\x1bPq\x1b\\\x08"
)
SHOWN = "mount [/data] [red]b[/] [link=http://x]c ::x:: :warning: mainspring[train] dendreversed"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_LIVE = re.compile(r"\x1b\[(?:[0-9;]*[mAGHK]|\?25[lh]|\?2026[lh])|\r")
"""What rich itself writes for a panel that is drawn again."""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (HOSTILE, SHOWN),
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[38:5:1mred\x1b[K", "red"),
        ("\x9b2Ja", "a"),
        ("an end\x1b", "an end"),
        ("\x1b]8;;unended", "8;;unended".join(["]", ""])),
        ("\x1b]0;one line\nthe next", "]0;one line\nthe next"),
        ("half \ud800", "half ?"),
        ("\u00e9 \u65e5\u672c \U0001f600", "\u00e9 \u65e5\u672c \U0001f600"),
    ],
)
def test_what_is_left_of_a_text(text: str, shown: str) -> None:
    assert plain(text) == shown


@pytest.mark.timeout(30)
@pytest.mark.parametrize("text", ["\x9d", "\x1b]", "\x9b0", "\x1b ", "\x1b[0;", "\x90a"])
def test_a_text_of_beginnings_takes_no_long_time(text: str) -> None:
    assert "\x1b" not in plain(text * 200_000)


def test_the_log_on_a_terminal_steers_nothing(tmp_path: Path) -> None:
    program = tmp_path / "logs.py"
    program.write_text(
        "import logging, structlog\n"
        "from infra.log_setup import set_up\n"
        "from mainspring.config.settings import LogFormat\n"
        f"text = {HOSTILE!r}\n"
        "set_up(LogFormat.TEXT)\n"
        "structlog.get_logger().info(text, failure=text)\n"
        "logging.getLogger('some.library').warning(text)\n"
        "logging.getLogger('mlflow.tracking').info('generated new fontManager')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "NO_COLOR": "1"}
    ended = subprocess.run(
        [sys.executable, str(program)], capture_output=True, env=environment, check=True
    )
    printed = ended.stderr.decode()
    assert printed.count(SHOWN) == 3 and not _STEERS.search(printed)
    assert "fontManager" not in printed


@pytest.fixture
def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Colours and control codes are written as on a terminal, of a width that folds nothing."""
    for name in ("NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("TERM", "xterm-256color")


def _attacks(_: Path) -> None:
    from cli.tasks.attacks import _print

    tried = {"exploit": HOSTILE, "fault": HOSTILE}
    task = {"task": HOSTILE, "got_through": [HOSTILE], "num_judged": 1, "exploits": [tried]}
    counts = {"num_got_through": 1, "num_judged": 1, "num_exploits": 1}
    _print({"tasks": [task], "source": HOSTILE, "split": HOSTILE, **counts})


def _verify(_: Path) -> None:
    from cli.tasks.verify import _print

    _print(
        {
            "not_verified": {HOSTILE: {"verification": "fault", "fault": HOSTILE, "reason": ""}},
            "counts": {"verified": 1},
            "patches": {"gold": {"num_resolved": 1, "num_graded": 1}},
            "num_tasks": 2,
            "source": HOSTILE,
            "split": "train",
        }
    )


def _checklist(_: Path) -> None:
    from cli.operations.checks.checklist_item import Item, State
    from cli.train.train import print_items

    print_items([Item(HOSTILE, State.MISSING, HOSTILE, HOSTILE)], Screen())


def _campaign_list(_: Path) -> None:
    from cli.campaign.campaign_screen import print_list

    counts = {"num_rollouts_done": 1, "num_steps": None, "num_scored": 0, "num_resolved": 0}
    names = {"name": HOSTILE, "kind": "eval", "status": "failed", "error": HOSTILE}
    names |= {"created_at": "2026-01-01T00:00:00", "retrained_from": None}
    print_list([{**counts, **names}])


def _campaign(_: Path) -> None:
    from cli.campaign.campaign_screen import print_one
    from infra.db.reading.agents import AgentFigures
    from infra.db.reading.task_sets import SetFigures
    from mainspring.status import CampaignKind
    from mainspring.words.waits import Wait

    totals = SimpleNamespace(
        **dict.fromkeys(("num_rollouts", "num_turns", "num_suspicious"), 1),
        **dict.fromkeys(("num_groups_flat", "num_groups_masked"), 0),
        **{"wall_s": 1.0, "max_logprob_gap": None},
    )
    words = {"verdicts": {"resolved": 1}, "stop_reasons": {HOSTILE: 1}, "bundles": {HOSTILE: 1}}
    made_at = datetime(2026, 1, 2, tzinfo=UTC)
    data = SimpleNamespace(
        made_at=made_at,
        totals=totals,
        supervised=None,
        fingerprint=None,
        steps=[],
        judge_warnings=[HOSTILE],
        sets=[SetFigures(HOSTILE, GroupKind.TRAIN, 1, 1, 1, 1, 0.5, 2.0)],
        changes=[FieldChange(1, HOSTILE, 1, 2, 2, HOSTILE, made_at)],
        faults={HOSTILE.removeprefix("mount "): 1},
        agents=[AgentFigures(HOSTILE, 1, 1, 1, 0.5, 2.0)],
        events=[_event()],
        **words,
    )
    print_one(
        SimpleNamespace(
            record=SimpleNamespace(
                id=HOSTILE,
                kind=CampaignKind.EVAL,
                status=CampaignStatus.FAILED,
                error=HOSTILE,
                parent=Parent(CampaignId(HOSTILE), 1, 0),
                retrained_from=None,
                is_retrained=False,
            ),
            data=data,
            doing=(HOSTILE,),
            waits=(Wait(HOSTILE, HOSTILE, failure=HOSTILE),),
            clocks={HOSTILE: HOSTILE},
            report=None,
            temporal_link="",
        )
    )


def _event() -> EventRecord:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    return EventRecord(HOSTILE, at, at, 2, None, HOSTILE, HOSTILE, HOSTILE, HOSTILE, {})


def _events(_: Path) -> None:
    from cli.events import _print_lines

    _print_lines([_event()])


def _evaluation(folder: Path) -> None:
    from cli.eval.eval_screen import print_summary

    row = {"rollout": HOSTILE, "instance_id": HOSTILE, "masked": True, "error": HOSTILE}
    # As it is written: with characters that are line breaks to `str.splitlines`.
    row |= {"verdict": None, "resolved": False, "text": "a\u2028b\x85c"}
    (folder / "results.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\n")
    summary = {"campaign": "e", "kind": "eval", "scored": 0, "resolved": 0, "pass_at_k": [{}]}
    summary["judge_warnings"] = [HOSTILE]
    summary |= {"errors": 1, "total": 1, "unfinished": 0, "avg_steps": 1.0, "avg_elapsed_s": 1.0}
    summary |= {"avg_prompt_tokens": 1, "avg_completion_tokens": 1, "avg_phase_s": {HOSTILE: 1.0}}
    summary |= {"verdicts": {HOSTILE: 1}, "stop_reasons": {HOSTILE: 1}, "suspicions": {HOSTILE: 1}}
    print_summary(summary, folder)


def _rollout_list(_: Path) -> None:
    from cli.rollout.rollout_screen import print_list

    row = SimpleNamespace(
        id=HOSTILE,
        task=HOSTILE,
        player=Player.POLICY,
        phase=RolloutPhase.DONE,
        stop_reason=StopReason.SUBMITTED,
        verdict=Verdict.RESOLVED,
        suspicions=[],
        reward=1.0,
        num_turns=1,
        epoch=0,
        labels=[HOSTILE],
        spent_s=1.0,
    )
    print_list("c", [row], 1, 10)


def _doctor(_: Path) -> None:
    from typer.testing import CliRunner

    from cli.main import app
    from cli.operations.checks import machine_checks
    from cli.operations.checks.machine_checks import Finding

    async def examine(home: Any) -> list[Finding]:
        return [Finding(HOSTILE, False, HOSTILE, required=False)]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(machine_checks, "examine", examine)
        print(CliRunner().invoke(app, ["doctor"]).output)


def _agents(_: Path) -> None:
    from typer.testing import CliRunner

    from cli.main import app
    from cli.operations.machine import agent_bundles
    from cli.operations.machine.agent_bundles import Listed

    row = Listed(HOSTILE, HOSTILE, True, HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(agent_bundles, "list_bundles", lambda: [row])
        print(CliRunner().invoke(app, ["agents", "list"]).output)


def _status(home: Path) -> None:
    from cli.machine import stack
    from cli.operations.machine import embedded_stack
    from cli.operations.machine.embedded_stack import ServiceState

    async def status(home: Path) -> list[ServiceState]:
        return [ServiceState(HOSTILE, HOSTILE, None, HOSTILE)]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(embedded_stack, "status", status)
        stack._show(home, False)


def _images(_: Path) -> None:
    from cli.tasks.tasks import _print

    _print([SimpleNamespace(image=HOSTILE, num_tasks=1, num_bytes=None, error=HOSTILE)])


def _hint(_: Path) -> None:
    from cli.options import hint

    hint(HOSTILE)


def _draining(_: Path) -> None:
    screen = Screen(stderr=True)
    with screen.status(HOSTILE):
        screen.print(HOSTILE)


def _bar(_: Path) -> None:
    from cli.progress import counting

    with counting(HOSTILE) as count:
        count(1, 2)


SCREENS = (
    *(_attacks, _verify, _checklist, _campaign_list, _campaign, _events, _evaluation),
    *(_rollout_list, _doctor, _agents, _status, _images, _hint, _draining, _bar),
)


@pytest.mark.parametrize("screen", SCREENS, ids=[each.__name__[1:] for each in SCREENS])
def test_a_screen_shows_the_text_as_it_is(
    screen: Callable[[Path], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    on_a_terminal: None,
) -> None:
    screen(tmp_path)
    printed = "".join(capsys.readouterr())
    shown = _LIVE.sub("", printed) if screen in (_draining, _bar) else _COLOURS.sub("", printed)
    assert SHOWN in shown
    assert not _STEERS.search(shown)
    assert "evil" not in shown


def test_a_panel_that_is_drawn_again_shows_the_text_as_it_is(
    capsys: pytest.CaptureFixture[str], on_a_terminal: None
) -> None:
    from cli.operations.runs.watch import RunWatch, Shown
    from mainspring.status import CampaignKind

    watch = RunWatch(cast(Any, None), cast(Any, None), cast(Any, "c"), HOSTILE)
    record: Any = SimpleNamespace(id=HOSTILE, kind=CampaignKind.TRAIN, status="running")
    facts = [("blocked", HOSTILE), ("doing", "[/bin/sh -c x]")]
    shown = Shown("steps", 1, 2, facts, HOSTILE)

    async def draw() -> None:
        async with watch:
            watch._live.update(watch._panel(record, shown), refresh=True)
        watch._print_line(CampaignStatus.RUNNING, shown)

    asyncio.run(draw())
    printed = _LIVE.sub("", "".join(capsys.readouterr()))
    assert printed.count(SHOWN) >= 3  # the fact, the link, the line
    assert "[/bin/sh -c x]" in printed
    assert not _STEERS.search(printed)


def test_an_error_does_not_steer_the_terminal(tmp_path: Path) -> None:
    program = tmp_path / "fails.py"
    program.write_text(
        "import cli.main\n"
        "from mainspring.errors import UsageError\n"
        f"text = {HOSTILE!r}\n"
        "def fail(): raise UsageError(text, remedy=text)\n"
        "cli.main.app = fail\n"
        "cli.main.main()\n"
    )
    reader, writer = pty.openpty()
    ended = subprocess.run(
        [sys.executable, str(program)],
        stderr=writer,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TERM": "xterm"},
    )
    os.close(writer)
    shown = printed_to(reader)
    assert ended.returncode == 2
    assert shown.count(SHOWN) == 2
    # A terminal's line ends in both.
    assert not _STEERS.search(_COLOURS.sub("", shown.replace("\r\n", "\n")))


def test_a_table_shows_text_on_any_console(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    table = Table("a", "b")
    table.add_row("t[param-1]", "see [/var/log/x] there")
    Console(width=80).print(table)
    printed = capsys.readouterr().out
    assert "t[param-1]" in printed and "see [/var/log/x] there" in printed


def test_lines_of_others_stand_above_a_panel(
    on_a_terminal: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line in the middle of a panel leaves a dead copy of it."""
    drawn_on, elsewhere = io.StringIO(), io.StringIO()
    panel, other = Screen(file=drawn_on), Screen(file=elsewhere)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    with drawn(panel):
        other.print("of a screen")
        panel.print("of its own")
        echo("of a command", dim=True, colour="red")
        echo("of a program", err=True)
    other.print("after it")
    assert [_COLOURS.sub("", line) for line in drawn_on.getvalue().splitlines()] == [
        "of a screen",
        "of its own",
        "of a command",
    ]
    assert "after it" in elsewhere.getvalue() and "of a" not in elsewhere.getvalue()
    assert capsys.readouterr().err == "of a program\n", "it is no terminal"
