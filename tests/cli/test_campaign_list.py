"""The list of campaigns on a terminal of 80 columns."""

import pytest

from cli.campaign.campaign_screen import print_list


def row(name: str, **others: object) -> dict[str, object]:
    return {
        "name": name,
        "kind": "train",
        "retrained_from": None,
        "status": "finished",
        "num_steps": 15,
        "num_steps_done": 15,
        "num_rollouts_done": 1472,
        "num_scored": 1472,
        "num_resolved": 700,
        "created_at": "2026-11-25T14:26:00+00:00",
        "error": None,
    } | others


@pytest.mark.parametrize("name", ["quickstart-s0-reproducible", "n" * 32])
def test_a_name_stands_in_one_line_and_nothing_is_cut(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_list([row("other", kind="verification", num_steps=None), row(name)])
    shown = capsys.readouterr().out
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert name in shown
    for word in ("1472", "step", "14:26"):
        assert word in shown, word
