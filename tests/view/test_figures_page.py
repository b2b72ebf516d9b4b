"""The page of all figures: what is drawn, of a campaign in a real store."""

from pathlib import Path

from store_records import begin_campaign
from told_campaign import METRICS, NAME, tell
from viewed import add_evaluation, home_of, viewer_of, wrong_in

from infra.db.database import Database
from view.drawing.bars import stacked
from view.drawing.panels import PANELS, draw
from view.drawing.plots import PlotLine, curve


async def test_every_figure_that_a_step_has_is_drawn(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await tell(db)
    async with viewer_of(home_of(tmp_path, store_url)) as client:
        page = (await client.get(f"/c/{NAME}/figures")).text
        document = (await client.get(f"/c/{NAME}/figures.json")).json()
        overview = (await client.get(f"/c/{NAME}")).text
    assert not wrong_in(page) and not wrong_in(overview)
    [row] = document["rows"]
    assert {name: row[name] for name in METRICS} == METRICS
    for title in ("Reward", "Entropy", "How far a step moves", "own_figure", "Parts of the reward"):
        assert f"<figcaption>{title} " in page, title
    assert "Critic" not in page, "nothing measured a critic"
    assert document["suspects"] == [
        [f"{NAME}/eval-v0001-heldout-sampled/002", 1],
        [f"{NAME}/g000000/001", 0],
    ]
    assert "Rollouts that look like cheating" in page
    assert [each["phase"] for each in document["timings"]][:3] == ["open", "generate", "grade"]
    # What was reached leads the overview: before, after, and the interval.
    head = overview[: overview.index("<figure")]
    assert "33 % &rarr; 75 %" in head and "largest log-prob gap" in head


async def test_a_run_without_steps_has_a_page_of_figures(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await begin_campaign(db)
    await add_evaluation(db, "measured", ["one"])
    async with viewer_of(home_of(tmp_path, store_url)) as client:
        page = (await client.get("/c/measured/figures")).text
        fresh = (await client.get("/c/first/figures")).text
    assert "such a run trains no policy" in page and "No step has finished" in fresh


def test_a_figure_that_spans_orders_of_magnitude_has_a_logarithmic_axis() -> None:
    [gap] = [panel for panel in PANELS if panel.title.startswith("Log-prob gap, served")]
    assert gap.is_log
    line = PlotLine("largest", [(1, 1e-6), (2, 1e-3)])
    assert "3.2e-05" in curve("gap", line, log=True), "the middle of the axis"
    assert "5.0e-04" in curve("gap", line)
    assert curve("gap", PlotLine("flat", [(1, 0.0), (2, 0.0)]), log=True).count("<circle") == 2


def test_what_no_step_has_is_not_drawn() -> None:
    rows = [{"step": 1, "reward_mean": 0.5, "value_mean": None}, {"step": 2, "reward_mean": 0.75}]
    drawn = {panel.title for panel in PANELS if draw(panel, rows)}
    assert drawn == {"Reward"}, "a figure beside which nothing stands is no panel of its own"


def test_bars_are_upon_each_other_and_leave_gaps() -> None:
    lines = [PlotLine("a", [(1, 2), (2, None)]), PlotLine("b", [(1, 1), (3, 4)])]
    drawn = stacked("groups", lines)
    assert drawn.count("<rect") == 3
    assert stacked("groups", [PlotLine("a", [(1, None)])]) == ""
