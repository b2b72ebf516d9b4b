"""From a campaign's rows in a real Postgres to what a report's files have."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import pytest
from told_campaign import METRICS, NAME, tell

from infra.db.database import Database
from infra.db.fence import UnknownId
from infra.db.reading.evaluations import Evaluation
from infra.db.reading.trained_steps import Composition, Lengths
from infra.db.runs import campaigns
from mainspring.config.campaign import CampaignConfig
from mainspring.ids import CampaignId
from mainspring.status import CampaignStatus, Sampling
from mainspring.training.step_metrics import TAKEN_NAMES
from migrations import upgrade
from reports.collect import collect
from reports.data import ReportData
from reports.summary import summary, write


@pytest.fixture
async def db(fresh_database: str) -> AsyncIterator[Database]:
    await asyncio.to_thread(upgrade.upgrade, fresh_database)
    async with Database.open(fresh_database, pool_size=2) as database:
        yield database


@pytest.fixture
async def told(db: Database) -> ReportData:
    await tell(db)
    return await collect(db, NAME, temporal_ui="http://127.0.0.1:8233")


async def test_a_campaign_is_told_from_its_rows(told: ReportData) -> None:
    assert (told.campaign, told.seed, told.status) == (NAME, 5, CampaignStatus.FINISHED)
    assert told.evaluations == (
        Evaluation(0, "heldout", Sampling.SAMPLED, 4, 1, num_masked=1),
        Evaluation(0, "heldout", Sampling.GREEDY, 2, 1),
        Evaluation(1, "heldout", Sampling.SAMPLED, 4, 3),
    ), "the unfinished one must not count"
    (step,) = told.steps
    assert (step.solve_rate, step.reward_mean, step.mixed_groups) == (0.5, 0.5, 1)
    assert (step.train_s, step.num_gap_tokens, step.staleness_mean) == (1.5, 12, 0.25)
    assert told.lengths == (Lengths(1, num_turns=2.0, num_tokens=4.0),)
    assert told.stop_reasons == {"step_limit": 12, "infra_fault": 1}
    assert told.verdicts == {"resolved": 7, "not_resolved": 5, "fault": 1}
    totals = dataclasses.replace(told.totals, wall_s=0.0)
    assert (totals.num_steps, totals.num_rollouts, totals.num_turns) == (1, 13, 26)
    assert totals.max_logprob_gap == pytest.approx(3e-5)
    assert totals.num_gap_tokens == 52
    assert told.totals.wall_s > 0


async def test_suspicious_rollouts_are_counted(told: ReportData) -> None:
    assert told.totals.num_suspicious == 2
    assert told.suspicions == {"searched_history": 1, "edited_tests": 2}
    assert told.compositions == (Composition(1, {"length": -0.5, "outcome": 0.5}, 0.5),)


async def test_summary_of_a_collected_campaign(told: ReportData) -> None:
    numbers = summary(told)
    assert numbers["solve_rate_before"] == pytest.approx(1 / 3)
    assert numbers["solve_rate_after"] == 0.75
    assert (numbers["greedy_before"], numbers["greedy_after"]) == (0.5, None)
    assert (numbers["num_suspicious"], numbers["reward_parts"]["length"]) == (2, -0.5)


async def test_a_campaign_that_only_exists_can_be_told(db: Database) -> None:
    config = CampaignConfig.model_validate({"name": "new", "trainer": {"warm_start": {}}})
    await campaigns.create(db, config)
    data = await collect(db, CampaignId("new"))
    assert data.evaluations == data.steps == ()
    assert data.totals.max_logprob_gap is None


async def test_an_unknown_campaign_is_named(db: Database) -> None:
    with pytest.raises(UnknownId, match="no campaign nobody is stored"):
        await collect(db, CampaignId("nobody"))


async def test_metrics_are_written_line_by_line(told: ReportData, tmp_path: Path) -> None:
    numbers = write(told, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    # A version's evaluations come after the step that made it.
    assert [(line["kind"], line["policy_version"]) for line in lines] == [
        *(("evaluation", 0), ("evaluation", 0)),
        *(("step", 1), ("evaluation", 1)),
    ]
    step = lines[2]
    assert {name: step[name] for name in METRICS} == METRICS
    of_the_loss = {"own_figure", "clip_fraction"}
    assert {name for name in step if "/" not in name} <= TAKEN_NAMES | of_the_loss
    assert (step["step"], step["resolve_rate"], step["turns_mean"]) == (1, 0.5, 2.0)
    assert (step["all_zero_groups"], step["all_one_groups"], step["masked_rollouts"]) == (0, 0, 0)
    assert step["reward_part/length"] == -0.5 and datetime.fromisoformat(step["time"])
    measured = lines[0]
    assert (measured["split"], measured["sampling"]) == ("heldout", "sampled")
    assert (measured["num_resolved"], measured["num_masked"]) == (1, 1)
    assert measured["resolve_rate"] == pytest.approx(1 / 3) and measured["time"]
    assert json.loads(numbers.read_text())["num_steps"] == 1
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.jsonl", "summary.json"}
