"""What the training activities drive holds its version, whatever became of its ranks."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from mainspring.artifacts import layout
from mainspring.config.campaign import CampaignConfig
from mainspring.ids import campaign_id
from mainspring.training.step_metrics import Origin, SupervisedMetrics, TrainerJob
from mainspring.training.training_faults import TrainerLost
from mainspring.trajectories.imitation import to_imitate
from mainspring.trajectories.samples import Sample
from tests.trainer.conftest import MakeModel
from tests.trainer.test_batch_file import killed_in_its_step
from trainer.engines.checkpoint import Identity
from trainer.process.backend import RayTrainer
from trainer.process.driver import TrainerDriver


@pytest.fixture(scope="module")
def job(make_config: Callable[..., CampaignConfig], make_model: MakeModel) -> TrainerJob:
    config = make_config()
    policy = config.policy.model_copy(update={"model": str(make_model()[1])})
    origin = Origin(campaign=config.name, uid="uid", config_digest="digest")
    return TrainerJob(config.model_copy(update={"policy": policy}), origin, 1)


@pytest.fixture(scope="module")
def trainer(job: TrainerJob, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayTrainer]:
    home = tmp_path_factory.mktemp("home")
    backend = RayTrainer(home, TrainerDriver())
    try:
        backend.prepare(job, home / "v0", lambda note: None)
        yield backend
    finally:
        backend.ranks.shutdown()


def kill_rank(trainer: RayTrainer) -> None:
    [pid] = trainer.ranks._pids
    os.kill(pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=30)


def test_a_rank_killed_between_calls_is_started_again_by_the_next_load(
    trainer: RayTrainer, job: TrainerJob, batch: list[Sample], tmp_path: Path
) -> None:
    checkpoint = trainer._home / "v0"
    trainer.load(job, checkpoint, 0)
    before = trainer.ranks.logprob_gap(batch, 0)
    kill_rank(trainer)
    trainer.load(job, checkpoint, 0)
    assert trainer.ranks.logprob_gap(batch, 0) == before


def test_a_rank_killed_before_a_check_fails_that_check_alone(
    trainer: RayTrainer, job: TrainerJob, batch: list[Sample]
) -> None:
    """Retried, it would otherwise fail for ever: no step comes to start the ranks again."""
    checkpoint = trainer._home / "v0"
    trainer.load(job, checkpoint, 0)
    before = trainer.ranks.logprob_gap(batch, 0)
    kill_rank(trainer)
    with pytest.raises(TrainerLost):
        trainer.ranks.logprob_gap(batch, 0)
    trainer.load(job, checkpoint, 0)
    assert trainer.ranks.logprob_gap(batch, 0) == before


def test_a_step_through_a_file_is_the_step_and_leaves_none_behind(
    trainer: RayTrainer, job: TrainerJob, batch: list[Sample]
) -> None:
    """Nor that of a trainer that was killed in its step."""
    checkpoint = trainer._home / "v0"
    folder = layout.batches(trainer._home, campaign_id(job.config.name))
    trainer.load(job, checkpoint, 0)
    expected = trainer.ranks.train_step(batch, step=0, current_version=0)
    trainer._version = None  # the call above moved the weights
    trainer.load(job, checkpoint, 0)
    killed_in_its_step(folder)
    assert len(list(folder.iterdir())) == 1
    found = trainer.train_step(batch, 1)
    assert replace(found, seconds=0.0) == replace(expected, seconds=0.0)
    assert list(folder.iterdir()) == []


def test_a_rank_killed_between_supervised_steps_is_not_replaced_by_older_weights(
    trainer: RayTrainer, job: TrainerJob, batch: list[Sample], tmp_path: Path
) -> None:
    """The ranks are started ahead with the newest version: no later step may begin there."""
    samples = [to_imitate(s.rollout, 0, s.token_ids, s.action_mask) for s in batch]
    checkpoint = trainer._home / "v0"

    def step(number: int) -> SupervisedMetrics:
        return trainer.supervised_step(samples, number, 4)

    trainer.load(job, checkpoint, 0)
    expected = [step(1), step(2), step(3)]
    kill_rank(trainer)
    trainer.load(job, checkpoint, 0)
    with pytest.raises(TrainerLost, match="the weights after step 3 were lost"):
        step(4)
    with pytest.raises(TrainerLost, match="the weights after step 3 were lost"):
        trainer.save(job, tmp_path / "v3", 3, "batch")
    assert not (tmp_path / "v3").exists()
    trainer.load(job, checkpoint, 0)
    assert [step(1), step(2), step(3)] == expected
    trainer.save(job, tmp_path / "v3", 3, "batch")
    last = step(4)
    kill_rank(trainer)
    trainer.load(job, tmp_path / "v3", 3)
    assert step(4) == last
    trainer._version = None  # of the tests after this one


def test_new_ranks_keep_version_0_as_their_reference_and_not_the_base_model(
    job: TrainerJob, batch: list[Sample], tmp_path: Path
) -> None:
    """As after a warm start: version 0 is not what ranks are built with."""
    kl = job.config.trainer.kl.model_copy(update={"coef": 0.1})
    trainer = job.config.trainer.model_copy(update={"kl": kl})
    with_kl = replace(job, config=job.config.model_copy(update={"trainer": trainer}))
    version_0 = layout.policy(tmp_path, campaign_id(job.config.name), 0)
    driver = TrainerDriver()
    driver.start(with_kl.config, Path(job.config.policy.model))
    driver.train_step(batch, step=0, current_version=0)
    driver.save(version_0, Identity(origin=job.origin, version=0), job.epoch)
    driver.shutdown()

    def kl_reference(backend: RayTrainer, step: int) -> float | None:
        return backend.train_step(batch, step).values["kl_reference"]

    first, second = (RayTrainer(tmp_path, TrainerDriver()) for _ in range(2))
    try:
        first.prepare(with_kl, version_0, lambda note: None)
        assert kl_reference(first, 1) == 0.0
        first.save(with_kl, tmp_path / "v1", 1, "batch")
        moved = kl_reference(first, 2)
        kill_rank(first)
        first.load(with_kl, tmp_path / "v1", 1)
        assert moved and kl_reference(first, 2) == moved
        first.ranks.shutdown()
        second.load(with_kl, tmp_path / "v1", 1)
        assert kl_reference(second, 2) == moved
    finally:
        first.ranks.shutdown()
        second.ranks.shutdown()


def test_a_trainer_that_is_started_again_imports_no_torch() -> None:
    """Which takes as long as all the rest of its start."""
    code = "import sys, workers.trainer; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
