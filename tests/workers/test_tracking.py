"""Trackers follow the store: each step once, and nothing waits for a tracker."""

import asyncio
import os
import random
import sys
import threading
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import structlog
from store_records import CAMPAIGN, add_ready_group, config, task

from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.db.training import policies, steps
from infra.db.training.step_clock import step_clock
from mainspring.artifacts import layout
from mainspring.config.campaign import CampaignConfig
from mainspring.ids import CampaignId
from mainspring.status import CampaignStatus
from mainspring.training.tracking import STEPS, Point, PointId, TracedStep
from tests.waiting import until
from workers import tracking

ROOT = Path(__file__).parents[2]
NUM_STEPS, NUM_KILLS = 16, 2
PROGRAM = Path(__file__).with_name("follow_campaign.py")


async def begin(db: Database, **sections: dict[str, Any]) -> None:
    await tasks.put_tasks(db, [task(0)])
    fields = config().model_dump(exclude_unset=True) | {"tracking": sections}
    await campaigns.create(db, CampaignConfig.model_validate(fields))
    await policies.put_first_policy(db, CAMPAIGN, "/models/v0", "/checkpoints/v0")


async def train(db: Database, step: int) -> None:
    group = await add_ready_group(db, step - 1)
    assert await steps.plan_step(db, CAMPAIGN, step, 1) == [group]
    clock = await step_clock(db, CAMPAIGN, step)
    assert 0 <= clock.trainer_idle_s <= clock.since_before_s
    await steps.commit_step(
        db,
        CAMPAIGN,
        step,
        metrics={"reward_mean": 0.5, "loss": step / 4, **clock.figures(100)},
        policy_path=f"/policies/v{step}",
        checkpoint=f"/policies/v{step}",
    )


def logged(uri: str, name: str = "loss") -> list[tuple[int, float]]:
    """Steps and values, each as often as MLflow has it, over all runs."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("mainspring")
    if experiment is None:
        return []
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) <= 1
    found = [each for run in runs for each in client.get_metric_history(run.info.run_id, name)]
    return sorted((each.step, each.value) for each in found)


@pytest.mark.chaos
async def test_a_follower_that_is_killed_sends_each_step_once(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    await begin(db, mlflow={"uri": uri})
    await follow_and_kill(db, store_url, tmp_path, lambda: logged(uri))
    assert logged(uri) == [(n, n / 4) for n in range(1, NUM_STEPS + 1)]
    assert len(logged(uri, "goodput")) == NUM_STEPS


def traces(uri: str) -> list[tuple[str, int]]:
    """Rollouts that MLflow has a trace of, as often as it has one, with the number of its spans."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("mainspring")
    if experiment is None:
        return []
    found = client.search_traces(locations=[experiment.experiment_id], max_results=100)
    return [(each.info.tags["mainspring.rollout"], len(each.data.spans)) for each in found]


@pytest.mark.chaos
async def test_a_follower_that_is_killed_sends_each_trace_once(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    await begin(db, mlflow={"uri": uri, "traces_per_step": 2})
    await follow_and_kill(db, store_url, tmp_path, lambda: logged(uri, "traces/logged"))
    assert logged(uri, "traces/logged") == [(n, 2.0) for n in range(1, NUM_STEPS + 1)]
    # A rollout, two turns with a reply each, and its grade.
    ids = [f"{CAMPAIGN}/g{n:06d}/00{i}" for n in range(NUM_STEPS) for i in (0, 1)]
    assert sorted(traces(uri)) == [(id, 6) for id in ids]
    assert logged(uri) == [(n, n / 4) for n in range(1, NUM_STEPS + 1)]


@pytest.mark.chaos
async def test_a_follower_that_is_killed_writes_each_step_once(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    from infra.tracking.wandb_files import rows_of

    def written() -> list[tuple[int, float]]:
        files = layout.tracking(tmp_path, CAMPAIGN, "wandb").glob("wandb/offline-run-*/*.wandb")
        rows = [row for file in files for row in rows_of(file)]
        return sorted((row["policy_version"], row["loss"]) for row in rows)

    await begin(db, wandb={"mode": "offline"})
    await follow_and_kill(db, store_url, tmp_path, written)
    assert written() == [(n, n / 4) for n in range(1, NUM_STEPS + 1)]


async def follow_and_kill(
    db: Database, store_url: str, home: Path, sent: Callable[[], Sequence[object]]
) -> None:
    """Commit NUM_STEPS steps while processes that follow are killed, and wait for all of them."""
    command = [sys.executable, str(PROGRAM), store_url, CAMPAIGN, str(home)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    draw, steps_done = random.Random(5), iter(range(1, NUM_STEPS + 1))
    for kill in range(NUM_KILLS):
        process = await asyncio.create_subprocess_exec(*command, env=environment)
        before = len(sent())
        await until(lambda: len(sent()) > before or not kill)  # noqa: B023
        for step in islice(steps_done, NUM_STEPS // NUM_KILLS):
            await train(db, step)
            await asyncio.sleep(draw.uniform(0, 0.05))
        process.kill()
        await process.wait()
    process = await asyncio.create_subprocess_exec(*command, env=environment)
    await until(lambda: len(sent()) >= NUM_STEPS)
    process.kill()
    await process.wait()


async def test_a_tracker_that_is_down_is_told_of_once_and_gets_all_later(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    for name in ("LOOK_S", "ATTEMPT_PAUSE_S", "RETRY_S"):
        monkeypatch.setattr(tracking, name, 0.05)
    folder = tmp_path / "server"
    folder.write_text("no folder yet")
    uri = f"sqlite:///{folder}/mlflow.db"
    await begin(db, mlflow={"uri": uri})
    with structlog.testing.capture_logs() as lines:
        following = asyncio.create_task(tracking.follow(db, CAMPAIGN, tmp_path))
        await train(db, 1)
        await until(lambda: any(line["log_level"] == "warning" for line in lines))
        await train(db, 2)
        await asyncio.sleep(0.5)  # some more attempts, of which nothing is told
        warnings = [line for line in lines if line["log_level"] == "warning"]
        assert [line["tracker"] for line in warnings] == ["mlflow"], warnings
        folder.unlink()
        folder.mkdir()
        await until(lambda: logged(uri) == [(1, 0.25), (2, 0.5)])
        await train(db, 3)
        await until(lambda: len(logged(uri)) == 3)
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following
    assert [line["event"] for line in lines if line["log_level"] == "info"] == [
        "tracker answers again"
    ]


async def test_traces_that_cannot_be_sent_hold_up_no_figures(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    from infra.tracking.mlflow_traces import MlflowTraces

    for name in ("LOOK_S", "ATTEMPT_PAUSE_S"):
        monkeypatch.setattr(tracking, name, 0.05)

    def refuse(self: MlflowTraces, points: Sequence[TracedStep]) -> None:
        raise NotImplementedError("log_spans is not supported: the server is 2.0")

    monkeypatch.setattr(MlflowTraces, "send", refuse)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    await begin(db, mlflow={"uri": uri, "traces_per_step": 1})
    with structlog.testing.capture_logs() as lines:
        following = asyncio.create_task(tracking.follow(db, CAMPAIGN, tmp_path))
        for step in (1, 2):
            await train(db, step)
        await until(lambda: logged(uri) == [(1, 0.25), (2, 0.5)])
        await until(lambda: any(line["log_level"] == "warning" for line in lines))
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following
    told = {(line["tracker"], line["reason"]) for line in lines if "is down" in line["event"]}
    assert [name for name, _ in told] == ["mlflow (traces)"]
    assert "the server is 2.0" in next(reason for _, reason in told)


class SlowTracker:
    """Hangs in its first call until it is let go."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.has: list[PointId] = []

    def open(self) -> set[PointId]:
        self.released.wait(30)
        return set(self.has)

    def send(self, points: Sequence[Point]) -> None:
        self.has += [point.id for point in points]

    def end(self, status: CampaignStatus | None) -> None:
        pass


async def test_a_tracker_that_hangs_holds_up_no_end(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("LOOK_S", 0.05), ("SLOW_S", 0.1), ("LAST_S", 0.3)):
        monkeypatch.setattr(tracking, name, seconds)
    await begin(db)
    await train(db, 1)
    tracker = SlowTracker()
    follower = tracking.Follower(db, CAMPAIGN, "slow", lambda: tracker)
    with structlog.testing.capture_logs() as lines:
        running = asyncio.create_task(follower.run())
        await until(lambda: any("is slow" in line["event"] for line in lines))
        running.cancel()
        async with asyncio.timeout(60):
            with pytest.raises(asyncio.CancelledError):
                await running
        assert lines[-1]["reason"] == "no answer within 0 s", lines
    tracker.released.set()


async def test_what_was_sent_while_a_trainer_ends_is_not_sent_again(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "LOOK_S", 0.05)
    await begin(db)
    await train(db, 1)
    tracker = SlowTracker()
    tracker.released.set()
    sending, go = threading.Event(), threading.Event()
    send = tracker.send

    def slowly(points: Sequence[Point]) -> None:
        sending.set()
        go.wait(60)
        send(points)

    tracker.send = slowly  # type: ignore[method-assign]
    running = asyncio.create_task(tracking.Follower(db, CAMPAIGN, "x", lambda: tracker).run())
    await until(sending.is_set)
    running.cancel()
    await asyncio.sleep(0.1)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [(each.series, each.step) for each in tracker.has] == [(STEPS, 1)]


def test_a_secret_in_a_failure_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "s3cret")
    assert tracking._told(ValueError("key s3cret is wrong\nmore")) == "ValueError: key *** is wrong"


async def test_a_campaign_without_trackers_is_left_alone(db: Database, tmp_path: Path) -> None:
    await tasks.put_tasks(db, [task(0)])
    await campaigns.create(db, config())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await tracking.follow(db, CampaignId(CAMPAIGN), tmp_path)
