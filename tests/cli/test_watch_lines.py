"""Plain lines of a run in progress: one on each change, none that repeats the last one at once."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from cli.operations.machine.supervisor import waited_here
from cli.operations.runs import watch
from cli.operations.runs.watch import RunWatch, Shown
from mainspring.status import CampaignStatus
from mainspring.words.waits import Wait


def shown(num_done: int, *waits: str) -> Shown:
    told = tuple(Wait(what, "wait", rank=0) for what in waits)
    return Shown("rollouts", num_done, 3, [], "0 running, 0 resolved", told)


def test_a_line_is_not_repeated_when_only_what_it_does_not_show_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [1000.0]
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    lines = RunWatch(cast(Any, None), cast(Any, None), cast(Any, "c"), "")

    def after(seconds: float, status: CampaignStatus, seen: Shown) -> int:
        now[0] += seconds
        lines._print_line(status, seen)
        return len(capsys.readouterr().out.splitlines())

    created, running = CampaignStatus.CREATED, CampaignStatus.RUNNING
    assert after(0, created, shown(0)) == 1
    assert after(1, created, shown(0, "a worker is starting")) == 0
    assert after(20, created, shown(0)) == 0  # nothing changed: no news after 15 s either
    assert after(1, running, shown(0)) == 1
    assert after(20, running, shown(1)) == 1
    assert after(1, running, shown(2)) == 0  # one more rollout waits for its 15 s
    assert after(20, running, shown(2)) == 1
    assert after(50, running, shown(2)) == 0
    assert after(20, running, shown(2)) == 1  # alive


def test_what_is_retried_is_told_once_and_not_with_each_attempt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It waits, runs and waits again, in less than the time between two plain lines."""
    now = [1000.0]
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    lines = RunWatch(cast(Any, None), cast(Any, None), cast(Any, "c"), "")
    printed = []
    for second in range(60):
        now[0] += 1
        retried = ["retrying model's reply: the endpoint refused"] * (second % 4 != 0)
        seen = replace(shown(0, *retried), line=f"{retried} (attempt {second})")
        lines._print_line(CampaignStatus.RUNNING, seen)
        printed += [second] * len(capsys.readouterr().out.splitlines())
    assert printed == [0, 1, 17, 33, 49]


def test_a_wait_counts_from_the_moment_when_the_workers_came() -> None:
    began = datetime(2026, 1, 1, 12, tzinfo=UTC)
    waits = [
        Wait("waiting for a sandbox node", since=began - timedelta(hours=3)),
        Wait("waiting for a reply", since=began + timedelta(seconds=9)),
        Wait("waiting for a person"),
    ]
    told = [wait.line(began + timedelta(seconds=10)) for wait in waited_here(waits, began)]
    assert told == [
        "waiting for a sandbox node (for 10 s)",
        "waiting for a reply (for 1 s)",
        "waiting for a person",
    ]
