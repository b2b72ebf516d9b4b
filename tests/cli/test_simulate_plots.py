"""Plots of simulated campaigns are files of their own, drawn where values differ."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from cli.bench.simulate.plots import write

ROW: dict[str, Any] = {
    "train_s": 1800.0,
    "groups_per_step": 4,
    "lifetime_s": None,
    "deadline_s": None,
    "max_staleness": 1,
    "on_loss": "resume",
    "trainer_idle": 0.4,
    "steps_per_h": 1.0,
    "discarded_turns": 0.1,
}


def test_what_varies_is_drawn(tmp_path: Path) -> None:
    rows = [ROW, ROW | {"train_s": 3600.0}]
    [path] = write(rows, tmp_path / "plots")
    assert path.name == "train-time.svg"
    text = path.read_text()
    assert "trainer idle" in text and "staleness 1" in text
    assert ElementTree.fromstring(text).tag.endswith("svg")


def test_one_value_is_no_plot(tmp_path: Path) -> None:
    assert write([ROW], tmp_path) == []


def test_machines_that_do_not_die_are_no_point_of_the_lifetimes(tmp_path: Path) -> None:
    dying = [ROW | {"lifetime_s": lifetime_s} for lifetime_s in (600.0, 3600.0)]
    [path] = write([ROW, *dying], tmp_path)
    assert path.name == "lifetimes.svg"
