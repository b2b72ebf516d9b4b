"""`mainspring bench grade` on a few tasks: every gold patch resolves, no fault is a verdict."""

import pytest

from bundled.generator import make_tasks
from bundled.gold import make_gold_tasks
from cli.bench.bench_grade import measure
from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.sandbox.protocol import BackendUnavailable


async def test_figures_of_a_few_gradings(tmp_path) -> None:
    try:
        await BwrapBackend(tmp_path).probe()
    except BackendUnavailable as error:
        pytest.skip(error.message)
    figures = await measure(4, print)
    assert (figures["num_tasks"], figures["resolved"], figures["faults"]) == (4, 4, 0)
    assert figures["grades_per_min"] == pytest.approx(4 / figures["wall_s"] * 60, rel=0.05)


def test_no_campaign_meets_a_task_that_knows_its_answer() -> None:
    for plain, gold in zip(make_tasks(0, "train", 3), make_gold_tasks(0, "s", 3), strict=True):
        assert plain.gold_patch is None and gold.gold_patch
        assert plain.files == gold.files and plain.tests == gold.tests
        assert {plain.id, plain.source}.isdisjoint({gold.id, gold.source})
