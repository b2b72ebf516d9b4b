"""What the training activities drive holds its version, whatever became of its ranks."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from mainspring.config.campaign import CampaignConfig
from mainspring.step_metrics import Origin, TrainerJob
from mainspring.training_faults import TrainerLost
from mainspring.trajectories.samples import Sample
from tests.trainer.conftest import MakeModel
from trainer.backend import RayTrainer


@pytest.fixture(scope="module")
def job(make_config: Callable[..., CampaignConfig], make_model: MakeModel) -> TrainerJob:
    config = make_config()
    policy = config.policy.model_copy(update={"model": str(make_model()[1])})
    origin = Origin(campaign=config.name, uid="uid", config_digest="digest")
    return TrainerJob(config.model_copy(update={"policy": policy}), origin, 1)


@pytest.fixture(scope="module")
def trainer(job: TrainerJob, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayTrainer]:
    home = tmp_path_factory.mktemp("home")
    backend = RayTrainer(home)
    try:
        backend.prepare(job, home / "v0", lambda note: None)
        yield backend
    finally:
        backend.shutdown()


def kill_rank(trainer: RayTrainer) -> None:
    [pid] = trainer._driver._pids
    os.kill(pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=30)


def test_a_rank_killed_between_calls_is_started_again_by_the_next_load(
    trainer: RayTrainer, job: TrainerJob, batch: list[Sample], tmp_path: Path
) -> None:
    checkpoint = trainer._home / "v0"
    trainer.load(job, checkpoint, 0)
    before = trainer.logprob_gap(batch, 0)
    kill_rank(trainer)
    trainer.load(job, checkpoint, 0)
    assert trainer.logprob_gap(batch, 0) == before


def test_a_rank_killed_before_a_check_fails_that_check_alone(
    trainer: RayTrainer, job: TrainerJob, batch: list[Sample]
) -> None:
    """Retried, it would otherwise fail for ever: no step comes to start the ranks again."""
    checkpoint = trainer._home / "v0"
    trainer.load(job, checkpoint, 0)
    before = trainer.logprob_gap(batch, 0)
    kill_rank(trainer)
    with pytest.raises(TrainerLost):
        trainer.logprob_gap(batch, 0)
    trainer.load(job, checkpoint, 0)
    assert trainer.logprob_gap(batch, 0) == before


def test_a_trainer_that_is_started_again_imports_no_torch() -> None:
    """Which takes as long as all the rest of its start."""
    code = "import sys, workers.trainer; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
