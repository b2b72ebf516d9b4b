"""A campaign in a real MLflow: one run, each point once, whatever was cut off."""

from pathlib import Path

import pytest

from tests.infra.tracking.tracked import UID, evaluation, given, step

pytest.importorskip("mlflow", reason="the extra mlflow is not installed")

from mlflow.entities import Metric, Run
from mlflow.tracking import MlflowClient

from infra.tracking.mlflow_run import UID_TAG
from infra.tracking.mlflow_tracker import MARKER, MlflowTracker
from mainspring.status import CampaignStatus


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/mlflow.db"


def tracker(uri: str, tmp_path: Path) -> MlflowTracker:
    return MlflowTracker(given(tmp_path, mlflow={"uri": uri}))


def only_run(client: MlflowClient) -> Run:
    experiment = client.get_experiment_by_name("mainspring")
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id])
    return run


def history(client: MlflowClient, name: str) -> list[tuple[int, float]]:
    found = client.get_metric_history(only_run(client).info.run_id, name)
    return sorted((metric.step, metric.value) for metric in found)


def test_a_restart_continues_the_run_and_knows_what_it_has(uri: str, tmp_path: Path) -> None:
    sent = [step(1), evaluation(0), step(2)]
    first = tracker(uri, tmp_path)
    assert first.open() == set()
    first.send(sent)
    first.end(CampaignStatus.FAILED)
    client = MlflowClient(tracking_uri=uri)
    assert only_run(client).info.status == "FAILED"
    second = tracker(uri, tmp_path)
    assert second.open() == {point.id for point in sent}
    second.send([step(3)])
    run = only_run(client)
    assert run.info.status == "RUNNING" and run.info.run_name == "first"
    assert run.data.tags[UID_TAG] == UID
    assert run.data.params == {"trainer.optimizer.lr": "0.001", "seed": "7"}
    assert history(client, "loss") == [(1, 0.5), (2, 1.0), (3, 1.5)]
    assert history(client, "evaluation/heldout/sampled/resolve_rate") == [(0, 1.0)]
    assert history(client, "reward_part/own_small") == [(n, 1.0) for n in (1, 2, 3)]
    assert "mfu" not in run.data.metrics, "what was not measured is no number"
    second.end(CampaignStatus.FINISHED)
    assert only_run(client).info.status == "FINISHED"


def test_a_point_that_was_cut_off_is_completed(uri: str, tmp_path: Path) -> None:
    first = tracker(uri, tmp_path)
    first.open()
    first.send([step(1)])
    client = MlflowClient(tracking_uri=uri)
    half = step(2)
    cut = Metric("loss", half.figures["loss"], half.id.time_ms, half.id.step)
    client.log_batch(only_run(client).info.run_id, metrics=[cut])
    second = tracker(uri, tmp_path)
    assert second.open() == {step(1).id}
    second.send([half, step(3)])
    for name in ("loss", MARKER, "reward_part/own_small"):
        assert [number for number, _ in history(client, name)] == [1, 2, 3], name


def test_a_step_that_was_rolled_back_is_another_point(uri: str, tmp_path: Path) -> None:
    first = tracker(uri, tmp_path)
    first.open()
    first.send([step(1)])
    assert step(1, again=70_000).id not in tracker(uri, tmp_path).open()


def test_another_campaign_of_the_same_name_is_another_run(uri: str, tmp_path: Path) -> None:
    from dataclasses import replace

    tracker(uri, tmp_path).open()
    mine = given(tmp_path, mlflow={"uri": uri})
    MlflowTracker(replace(mine, campaign=replace(mine.campaign, uid="0" * 32))).open()
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("mainspring")
    assert experiment is not None
    assert len(client.search_runs([experiment.experiment_id])) == 2
