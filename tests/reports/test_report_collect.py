"""From a campaign's rows in a real Postgres to what a report says."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from infra.db.database import Database
from infra.db.fence import UnknownId
from infra.db.reading.evaluations import CheckedGap, Evaluation
from infra.db.reading.trained_steps import Composition, Lengths
from infra.db.rollouts import groups, rollouts, turns
from infra.db.rollouts.groups import NewRollout
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.db.training import policies, steps
from mainspring.config.campaign import CampaignConfig
from mainspring.ids import (
    CampaignId,
    GroupId,
    RolloutId,
    TaskId,
    eval_group_id,
    group_id,
    rollout_id,
)
from mainspring.status import CampaignStatus, GroupKind, Sampling, StopReason, Suspicion, Verdict
from mainspring.tasks.swe_task import SweTask
from mainspring.training.step_metrics import TAKEN_NAMES
from mainspring.trajectories.turns import Call, Execution, VersionSpan
from migrations import upgrade
from reports import page
from reports.collect import collect
from reports.data import RanCommand, ReportData, ShownTurn
from reports.summary import summary, write

NAME = CampaignId("told")
COMMAND = "cat a.py"
METRICS = {
    "loss": 0.1,
    "grad_norm": 0.5,
    "entropy": 0.3,
    "clip_fraction": 0.01,
    "kl": 0.002,
    "lr": 1e-3,
    "logprob_gap_max": 2e-5,
    "num_gap_tokens": 12.0,
    "seconds": 1.5,
    "reward_mean": 0.5,
    "mixed_groups": 1.0,
    "staleness_mean": 0.25,
    "own_figure": 0.75,
}


@pytest.fixture
async def db(fresh_database: str) -> AsyncIterator[Database]:
    await asyncio.to_thread(upgrade.upgrade, fresh_database)
    async with Database.open(fresh_database, pool_size=2) as database:
        yield database


def task(number: int) -> SweTask:
    return SweTask(
        id=TaskId(f"task-{number}"),
        source="made-up",
        split="heldout",
        issue=f"a.py is wrong in way {number}",
        files={"a.py": "x = 1\n"},
        test_command="true",
    )


async def play(
    db: Database, rollout: RolloutId, reward: float | None, suspicions: tuple[Suspicion, ...] = ()
) -> None:
    """One turn with a command, one without, then the end that gives this reward."""
    epoch = (await rollouts.claim(db, rollout, "run")).epoch
    start = 0
    for turn, text in enumerate((f"```bash\n{COMMAND}\n```", "no command")):
        reply = Call(
            number=turn,
            parent=turn - 1 if turn else None,
            prompt_start=start,
            prompt_ids=(1, 2, 3),
            completion_ids=(4, 5),
            logprobs=(-0.5, -0.25),
            spans=(VersionSpan(0, 0, 2),),
            text=text,
            finish_reason="stop",
            latency_s=0.2,
        )
        await turns.put_call(db, rollout, epoch, reply)
        start = reply.end
    await turns.put_intent(db, rollout, epoch, 0, 0, COMMAND)
    ran = Execution(0, 0, COMMAND, 0, b"x = 1\xff\n", truncated=False, timed_out=False, wall_s=0.1)
    await turns.put_execution(db, rollout, epoch, ran)
    verdicts = {None: Verdict.FAULT, 0.0: Verdict.NOT_RESOLVED, 1.0: Verdict.RESOLVED}
    await rollouts.finish(
        db,
        rollout,
        epoch,
        stop_reason=StopReason.INFRA_FAULT if reward is None else StopReason.STEP_LIMIT,
        verdict=verdicts[reward],
        reward=reward,
        fault=None,
        num_turns=2,
        phase_s={"grade": 0.4, "generate": 0.5, "open": 0.1},
        reward_parts=None if reward is None else {"outcome": reward, "length": -0.5},
        suspicions=suspicions,
    )


async def group_of(
    db: Database,
    group: GroupId,
    kind: GroupKind,
    rewards: list[float | None],
    *,
    version: int = 0,
    sampling: Sampling = Sampling.SAMPLED,
    finished: bool = True,
    suspicious: dict[int, tuple[Suspicion, ...]] | None = None,
) -> None:
    train = kind is GroupKind.TRAIN
    await groups.create_group(
        db,
        group,
        NAME,
        kind,
        policy_version=version,
        split="train" if train else "heldout",
        rollouts=[
            NewRollout(rollout_id(group, i), task(0 if train else i).id, i, 1.0)
            for i in range(len(rewards))
        ],
        sampling=sampling,
        index=0 if train else None,
        task=task(0).id if train else None,
    )
    for i, reward in enumerate(rewards):
        if finished or i == 0:
            await play(db, rollout_id(group, i), reward, (suspicious or {}).get(i, ()))
    if finished:
        await groups.finish_group(db, group)


async def evaluate(
    db: Database, version: int, rewards: list[float | None], *, greedy: bool = False, **more: Any
) -> None:
    sampling = Sampling.GREEDY if greedy else Sampling.SAMPLED
    group = eval_group_id(NAME, "heldout", sampling, version)
    await group_of(db, group, GroupKind.EVAL, rewards, version=version, sampling=sampling, **more)


@pytest.fixture
async def told(db: Database) -> ReportData:
    """A campaign of one step, measured before and after."""
    config = {"name": NAME, "seed": 5, "trainer": {"num_steps": 1, "warm_start": {}}}
    await tasks.put_tasks(db, [task(number) for number in range(4)])
    await campaigns.create(db, CampaignConfig.model_validate(config))
    await policies.put_first_policy(db, NAME, "/v0")
    await evaluate(db, 0, [0.0, 0.0, 1.0, None])
    await evaluate(db, 0, [1.0, 0.0], greedy=True)
    await policies.put_gap(db, NAME, 0, 3e-5, 40)
    marked = {1: (Suspicion.SEARCHED_HISTORY, Suspicion.EDITED_TESTS)}
    await group_of(db, group_id(NAME, 0), GroupKind.TRAIN, [1.0, 0.0], suspicious=marked)
    assert await steps.plan_step(db, NAME, 1, 1) == [group_id(NAME, 0)]
    await steps.commit_step(db, NAME, 1, metrics=METRICS, policy_path="/v1", checkpoint="/v1")
    await evaluate(db, 1, [1.0, 0.0, 1.0, 1.0], suspicious={2: (Suspicion.EDITED_TESTS,)})
    await evaluate(db, 1, [1.0, 1.0], greedy=True, finished=False)
    await campaigns.set_status(db, NAME, CampaignStatus.FINISHED)
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
    assert [timing.phase for timing in told.timings] == [
        *("open", "generate", "grade"),
        *("one reply", "one command", "one step"),
    ]
    assert told.timings[0].p95_s == pytest.approx(0.1)
    assert told.stop_reasons == {"step_limit": 12, "infra_fault": 1}
    assert told.verdicts == {"resolved": 7, "not_resolved": 5, "fault": 1}
    totals = dataclasses.replace(told.totals, wall_s=0.0)
    assert (totals.num_steps, totals.num_rollouts, totals.num_turns) == (1, 13, 26)
    assert totals.max_logprob_gap == pytest.approx(3e-5)
    assert totals.num_gap_tokens == 52
    assert told.totals.wall_s > 0


async def test_trajectories_show_what_was_learned(told: ReportData) -> None:
    learned, after, failed, masked, *_ = told.trajectories
    assert (learned.task, learned.policy_version, learned.reward) == ("task-0", 0, 0.0)
    assert (after.task, after.policy_version, after.reward) == ("task-0", 1, 1.0)
    assert (failed.task, failed.policy_version, failed.reward) == ("task-1", 1, 0.0)
    assert (masked.reward, masked.verdict) == (None, Verdict.FAULT)
    assert after.issue == "a.py is wrong in way 0"
    assert after.turns == (
        ShownTurn(f"```bash\n{COMMAND}\n```", (RanCommand(COMMAND, 0, "x = 1\ufffd\n"),)),
        ShownTurn("no command"),
    )


async def test_suspicious_rollouts_are_counted_and_the_first_are_shown(told: ReportData) -> None:
    assert told.totals.num_suspicious == 2
    assert told.suspicions == {"searched_history": 1, "edited_tests": 2}
    assert told.compositions == (Composition(1, {"length": -0.5, "outcome": 0.5}, 0.5),)
    solved, failed = told.suspects
    assert (solved.rollout, solved.policy_version) == (f"{NAME}/eval-v0001-heldout-sampled/002", 1)
    assert (failed.rollout, failed.policy_version) == (f"{NAME}/g000000/001", 0)
    assert failed.suspicions == ("searched_history", "edited_tests")
    assert failed.reward_parts == {"outcome": 0.0, "length": -0.5}
    html = page.render(told)
    assert f'href="#{failed.rollout}"' in html and f'id="{failed.rollout}"' in html


async def test_summary_and_page_of_a_collected_campaign(told: ReportData) -> None:
    numbers = summary(told)
    assert numbers["solve_rate_before"] == pytest.approx(1 / 3)
    assert numbers["solve_rate_after"] == 0.75
    assert (numbers["greedy_before"], numbers["greedy_after"]) == (0.5, None)
    assert (numbers["num_suspicious"], numbers["reward_parts"]["length"]) == (2, -0.5)
    assert "workflows/rollout%2Ftold%2Feval-v0001-heldout-sampled%2F000" in page.render(told)


async def test_a_campaign_that_only_exists_can_be_told(db: Database) -> None:
    config = CampaignConfig.model_validate({"name": "new", "trainer": {"warm_start": {}}})
    await campaigns.create(db, config)
    data = await collect(db, CampaignId("new"))
    assert data.evaluations == data.steps == data.timings == data.trajectories == ()
    assert data.totals.max_logprob_gap is None
    assert "not measured" in page.render(data)


async def test_an_unknown_campaign_is_named(db: Database) -> None:
    with pytest.raises(UnknownId, match="no campaign nobody is stored"):
        await collect(db, CampaignId("nobody"))


async def test_metrics_are_written_line_by_line(told: ReportData, tmp_path: Path) -> None:
    report, _ = write(told, tmp_path)
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
    assert report.exists()


async def test_what_a_loss_names_is_drawn_beside_the_rest(told: ReportData) -> None:
    assert told.own_figures == ["own_figure"]
    assert "Figures of the loss" in page.render(told)
    usual = {name: value for name, value in METRICS.items() if name != "own_figure"}
    without = dataclasses.replace(told.steps[0], metrics=usual)
    assert "Figures of the loss" not in page.render(dataclasses.replace(told, steps=(without,)))


async def test_a_checked_gap_is_drawn_where_no_step_measured_one(told: ReportData) -> None:
    assert told.checked_gaps == (CheckedGap(0, pytest.approx(3e-5), 40),)
    unmeasured = dataclasses.replace(told.steps[0], num_gap_tokens=0, logprob_gap_max=0.0)
    html = page.render(dataclasses.replace(told, steps=(unmeasured,)))
    assert "Log-prob gap" in html and "not measured" not in html
