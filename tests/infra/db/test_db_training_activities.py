"""The training activities of two trainers on one store: the older one makes nothing visible."""

import asyncio
from pathlib import Path

import pytest
from store_records import CAMPAIGN, add_ready_group, begin_campaign
from temporalio.testing import ActivityEnvironment

from activities.training import Progress, TrainingActivities
from infra.db import campaigns, policies, steps, trainers
from infra.db.database import Database
from mainspring.algorithms.gap import LogprobGap
from mainspring.protocol.campaign import StepInput
from mainspring.status import StepStatus
from mainspring.step_metrics import StepMetrics, TrainerJob
from mainspring.training_faults import TrainerFenced
from mainspring.trajectories.samples import Sample

STEP = StepInput(campaign=CAMPAIGN, step=1, num_groups=1)


class Backend:
    """Trains nothing; notes what it was asked for."""

    def __init__(self) -> None:
        self.saved: list[tuple[TrainerJob, int, str]] = []
        self.samples: list[Sample] = []

    def prepare(self, job: TrainerJob, directory: Path, progress: Progress) -> None:
        raise AssertionError("version 0 is stored")

    def load(self, job: TrainerJob, checkpoint: Path, version: int) -> None:
        assert version == 0

    def train_step(self, samples: list[Sample], step: int) -> StepMetrics:
        self.samples = samples
        return StepMetrics(
            loss=None,
            grad_norm=None,
            entropy=None,
            ratio_mean=None,
            kl=None,
            kl_k1=None,
            num_tokens=0,
            num_samples=0,
            lr=0.1,
            logprob_gap_max=None,
            logprob_gap_mean=None,
            logprob_gap_p999=None,
            logprob_gap_k3=None,
            num_gap_tokens=0,
            seconds=0.0,
            values={"own_figure": 0.25},
        )

    def save(self, job: TrainerJob, directory: Path, version: int, batch: str) -> None:
        self.saved.append((job, version, batch))

    def logprob_gap(self, samples: list[Sample], version: int) -> LogprobGap:
        raise AssertionError("no evaluation here")


async def planned(db: Database) -> None:
    await begin_campaign(db)
    group = await add_ready_group(db, 0)
    assert await steps.plan_step(db, CAMPAIGN, 1, 1) == [group]


async def test_a_trainer_that_was_replaced_saves_and_commits_nothing(
    db: Database, tmp_path: Path
) -> None:
    await planned(db)
    await trainers.take(db, CAMPAIGN, owner="a", process="pa")
    await trainers.take(db, CAMPAIGN, owner="b", process="pb", ended="pa")
    backends = [Backend(), Backend()]
    older, newer = (
        TrainingActivities(db, tmp_path, backend, epoch)
        for epoch, backend in enumerate(backends, start=1)
    )
    first, second = await asyncio.gather(
        ActivityEnvironment().run(older.train_step, STEP),
        ActivityEnvironment().run(newer.train_step, STEP),
        return_exceptions=True,
    )
    # done by the newer one, or refused: the older one may also find the step done
    assert isinstance(first, TrainerFenced) or first == second
    assert backends[0].saved == []
    [(job, version, batch)] = backends[1].saved
    record = await campaigns.get(db, CAMPAIGN)
    assert (job.epoch, version) == (2, 1)
    assert (job.origin.uid, job.origin.config_digest) == (record.uid, record.config_digest)
    assert len(batch) == 64
    newest = await policies.latest_policy(db, CAMPAIGN)
    assert newest is not None and newest.version == 1


async def test_what_was_not_measured_is_stored_as_unknown(db: Database, tmp_path: Path) -> None:
    await planned(db)
    await trainers.take(db, CAMPAIGN, owner="a", process="pa")
    backend = Backend()
    activities = TrainingActivities(db, tmp_path, backend, 1)
    result = await ActivityEnvironment().run(activities.train_step, STEP)
    assert result.logprob_gap_max is None
    step = await steps.get_step(db, CAMPAIGN, 1)
    assert step is not None and step.status is StepStatus.DONE
    for name in ("loss", "entropy", "kl", "logprob_gap_max", "logprob_gap_p999"):
        assert step.metrics[name] is None, name
    assert step.metrics["own_figure"] == 0.25 and "values" not in step.metrics
    # two rollouts of two turns, whose replies hold tokens of versions 0 and 1
    assert step.metrics["staleness_max"] == 0
    assert len(backend.samples) == 2
    with pytest.raises(TrainerFenced):
        await trainers.check(db, CAMPAIGN, 2)
