"""docs/metrics.md has a line for every figure that the program has, and no other."""

import re
from pathlib import Path

from report_data import report_data

from mainspring.algorithms.choice import LOSSES
from mainspring.training.step_metrics import CLIP_NAMES, NLL, PASS_NAMES, TAKEN_NAMES
from reports.metrics import lines
from view.drawing.panels import NOT_DRAWN, PANELS, own_panels

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
ROW = re.compile(r"^\| `([\w/]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
NO_FIGURES = {"values", "gradient", "flops", "peak_flops", "details"}
"""Of a step's metrics: not stored under these names."""
OF_A_LINE = {"kind", "campaign", "step", "policy_version", "time", "split", "sampling"}


def documented(section: str) -> list[str]:
    _, _, rest = PAGE.partition(f"## {section}\n")
    rows = ROW.findall(rest.partition("\n## ")[0])
    assert all(cell.strip() for row in rows for cell in row)
    return [name for name, *_ in rows]


def test_every_figure_of_a_step_has_a_line() -> None:
    names = documented("Of a step")
    assert len(names) == len(set(names))
    known = (TAKEN_NAMES | PASS_NAMES | {*CLIP_NAMES, NLL}) - NO_FIGURES - OF_A_LINE
    assert set(names) == known | {"reward_part/NAME"}


def test_every_figure_of_an_evaluation_has_a_line() -> None:
    found = [line for line in lines(report_data()) if line["kind"] == "evaluation"]
    assert set(documented("Of an evaluation")) == set(found[0]) - OF_A_LINE


def test_every_figure_of_a_line_has_a_name() -> None:
    found = [line for line in lines(report_data()) if line["kind"] == "step"]
    names = {name.partition("/")[0] for name in found[0]} - OF_A_LINE
    assert names <= {name.partition("/")[0] for name in documented("Of a step")}


def test_losses_name_nothing_else() -> None:
    """Of Mainspring's losses: what the page calls by the names of a clip."""
    folder = Path(__file__).parents[2] / "trainer" / "losses"
    texts = [(folder / f"{name}.py").read_text() for name in (*LOSSES, "objective")]
    named = {name for text in texts for name in re.findall(r'"(\w+)": ', text)}
    assert named == {*CLIP_NAMES, NLL}


def test_every_figure_of_a_step_is_drawn() -> None:
    drawn = {figure for panel in PANELS for figure in panel.figures} - NOT_DRAWN
    assert drawn | {"reward_part/NAME"} == set(documented("Of a step"))


def test_the_rest_of_a_line_is_no_figure() -> None:
    found = [line for line in lines(report_data()) if line["kind"] == "step"]
    assert own_panels(found)[0].title == "Parts of the reward"
    assert [panel.title for panel in own_panels(found)[1:]] == []
    assert [each.title for each in own_panels([row | {"mine": 1.0} for row in found])[1:]] == [
        "mine"
    ]
