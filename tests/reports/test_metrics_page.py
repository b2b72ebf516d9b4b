"""docs/metrics.md has a line for every figure that the program has, and no other."""

import re
from dataclasses import replace
from pathlib import Path

from report_data import report_data

from mainspring.algorithms.choice import LOSSES
from mainspring.training.step_metrics import CLIP_NAMES, NLL, PASS_NAMES, TAKEN_NAMES
from reports.figure_plots import ELSEWHERE, PANELS
from reports.metrics import lines
from reports.page import render

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


def watched_rows() -> list[str]:
    """Figures with a bad value: people are told to watch them."""
    _, _, rest = PAGE.partition("## Of a step\n")
    return [name for name, *_, bad in ROW.findall(rest.partition("\n## ")[0]) if bad.strip() != "-"]


def test_every_figure_that_is_to_be_watched_is_drawn_by_the_report() -> None:
    drawn = {name for panel in PANELS for name in panel.names} | ELSEWHERE
    assert set(watched_rows()) <= drawn
    assert drawn <= set(documented("Of a step"))


def test_what_others_draw_is_named_in_their_source() -> None:
    folder = Path(__file__).parents[2] / "reports"
    source = "".join((folder / f"{name}.py").read_text() for name in ("plots", "speed_plots"))
    called = {
        "resolve_rate": "solve_rate",
        "turns_mean": "num_turns",
        "sampled_tokens_mean": "num_tokens",
        "suspicious_share": "suspicious",
        "reward_part/NAME": "composition.parts",
        # Drawn by name, whatever they are.
        **dict.fromkeys(PASS_NAMES | {NLL}, "own_figures"),
    }
    for name in ELSEWHERE:
        assert called.get(name, name) in source, name


def test_a_page_has_every_panel_there_is_data_for() -> None:
    data = report_data()
    names = {name for panel in PANELS for name in panel.names}
    steps = tuple(
        replace(step, metrics=step.metrics | dict.fromkeys(names, 0.1 + step.step))
        for step in data.steps[:3]
    )
    page = render(replace(data, steps=steps))
    for panel in PANELS:
        assert f"<b>{panel.title.replace(chr(39), '&#39;')}</b>" in page, panel.title
        for name in panel.names:
            if len(panel.names) > 1:
                assert f">{name}<" in page, name
    bare = tuple(replace(step, metrics={}) for step in data.steps[:3])
    assert "Critic" not in render(replace(data, steps=bare))


def test_a_page_has_what_the_figures_warn_of() -> None:
    page = render(replace(report_data(), warnings=("step 3: kl is 0.114: <moved>",)))
    assert "Worth a look" in page and "step 3: kl is 0.114: &lt;moved&gt;" in page
    assert "Worth a look" not in render(report_data())
