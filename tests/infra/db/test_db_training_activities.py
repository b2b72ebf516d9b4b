"""The training activities on one store: an older trainer makes nothing visible, and a reproducible
campaign's versions tell what they are made of and refuse a trainer of other bits."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
import pytest
from safetensors.numpy import save_file
from store_records import CAMPAIGN, add_ready_group, begin_campaign, config, task
from temporalio.testing import ActivityEnvironment

from activities.training import training
from activities.training.trainer_backend import Progress
from activities.training.training import HF_DIRECTORY, TrainingActivities
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.db.training import fingerprints, policies, steps, trainers
from infra.policy.model.weight_files import weights_digest
from mainspring.algorithms.gap import LogprobGap
from mainspring.artifacts.fingerprint import Fingerprint
from mainspring.artifacts.stamp import Stamp
from mainspring.config.campaign import CampaignConfig
from mainspring.ids import CampaignId
from mainspring.protocol.campaign import StepInput
from mainspring.status import CampaignStatus, StepStatus
from mainspring.training.step_metrics import StepMetrics, TrainerJob
from mainspring.training.training_faults import StampDiffers, TrainerFenced
from mainspring.trajectories.samples import Sample, content_digest, digest
from tests.empty_step import EMPTY_STEP
from tests.waiting import until

STEP = StepInput(campaign=CAMPAIGN, step=1, num_groups=1)


MADE_BY = Stamp(
    torch="2.0",
    mkl_cbwr="AVX2,STRICT",
    cpu_capability="AVX2",
    cpu="GenuineIntel-avx2",
    micro_batch_tokens=8192,
    threads_per_rank=1,
)


class NoBackground:
    """No checkpoint is written while steps follow."""

    version = None

    def finish(self, *, wait: bool) -> int | None:
        return None


class Backend:
    """Trains nothing; notes what it was asked for."""

    background = NoBackground()

    def __init__(self, made_by: Stamp = MADE_BY, gradient: str = "f" * 64) -> None:
        self.made_by = made_by
        self.gradient = gradient
        self.num_steps = 0
        self.saved: list[tuple[TrainerJob, int, str]] = []
        self.samples: list[Sample] = []
        self.loaded: list[tuple[Path, int]] = []
        self.has_died = False
        self.again: list[int] = []
        self.version: int | None = None

    def prepare(self, job: TrainerJob, directory: Path, progress: Progress) -> None:
        raise AssertionError("version 0 is stored")

    def holds(self, job: TrainerJob, version: int) -> bool:
        return version == self.version and not self.has_died

    def load(self, job: TrainerJob, checkpoint: Path, version: int) -> None:
        assert version == 0
        self.version = version
        self.loaded.append((checkpoint, version))
        self.has_died = False

    @property
    def ranks(self) -> Self:
        return self

    def has_ranks(self) -> bool:
        return self.version is not None and not self.has_died

    def train_step(self, samples: list[Sample], step: int) -> StepMetrics:
        assert self.version == step - 1
        self.version = None
        self.samples = samples
        self.num_steps += 1
        return replace(EMPTY_STEP, values={"own_figure": 0.25}, gradient=self.gradient)

    def save(
        self,
        job: TrainerJob,
        directory: Path,
        version: int,
        batch: str,
        *,
        weights_only: bool = False,
    ) -> None:
        self.version = version
        self.saved.append((job, version, batch))
        weights = directory / HF_DIRECTORY
        weights.mkdir(parents=True, exist_ok=True)
        save_file({"w": np.full(3, version, np.float32)}, weights / "model.safetensors")

    def begin_checkpoint(self, job: TrainerJob, directory: Path, version: int) -> None:
        raise AssertionError("every checkpoint is waited for")

    @property
    def stamp(self) -> Stamp:
        return self.made_by

    def trained_again(self, job: TrainerJob, version: int, batch: str) -> None:
        self.version = version
        self.again.append(version)

    def logprob_gap(
        self, samples: list[Sample], version: int, export: Path | None = None
    ) -> LogprobGap:
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


async def planned_reproducible(db: Database, **trainer: int) -> None:
    await tasks.put_tasks(db, [task(0)])
    sizes = {"num_steps": 4, "groups_per_step": 1} | trainer
    fields = config(**sizes).model_dump(exclude_unset=True) | {"schedule": "reproducible"}
    fields["trainer"]["device"] = "cpu"
    await campaigns.create(db, CampaignConfig.model_validate(fields))
    first = Fingerprint(weights="0" * 64)
    await policies.put_first_policy(
        db, CAMPAIGN, "/models/v0", "/checkpoints/v0", stamp=MADE_BY, fingerprint=first
    )
    await add_ready_group(db, 0, draw=0)
    await steps.plan_step(db, CAMPAIGN, 1, 1)
    await trainers.take(db, CAMPAIGN, owner="a", process="pa")


async def test_a_version_keeps_its_fingerprint_and_stamp(db: Database, tmp_path: Path) -> None:
    await planned_reproducible(db)
    backend = Backend()
    await ActivityEnvironment().run(TrainingActivities(db, tmp_path, backend, 1).train_step, STEP)
    first, second = await fingerprints.of_campaign(db, CAMPAIGN)
    assert (first.version, first.stamp) == (0, MADE_BY)
    assert first.fingerprint == Fingerprint(weights="0" * 64)
    assert (second.version, second.stamp) == (1, MADE_BY)
    version = await policies.get_policy(db, CAMPAIGN, 1)
    assert second.fingerprint == Fingerprint(
        batch=content_digest(backend.samples),
        gradient="f" * 64,
        weights=weights_digest(Path(version.path)),
    )
    step = await steps.get_step(db, CAMPAIGN, 1)
    assert step is not None and "gradient" not in step.metrics


async def with_a_version_without_checkpoint(db: Database, tmp_path: Path) -> None:
    """Step 1 is done, step 2 is planned."""
    await planned_reproducible(db, checkpoint_every=2)
    activities = TrainingActivities(db, tmp_path, Backend(), 1)
    await ActivityEnvironment().run(activities.train_step, STEP)
    version = await policies.get_policy(db, CAMPAIGN, 1)
    assert version.checkpoint is None
    await add_ready_group(db, 1, draw=1)
    assert len(await steps.plan_step(db, CAMPAIGN, 2, 1)) == 1


async def test_a_step_without_a_checkpoint_is_trained_again_by_the_next_trainer(
    db: Database, tmp_path: Path
) -> None:
    await with_a_version_without_checkpoint(db, tmp_path)
    next_one = Backend()
    activities = TrainingActivities(db, tmp_path, next_one, 1)
    await ActivityEnvironment().run(activities.train_step, STEP.model_copy(update={"step": 2}))
    assert next_one.loaded == [(Path("/checkpoints/v0"), 0)]
    assert (next_one.again, next_one.num_steps) == ([1], 2)
    assert [version for _, version, _ in next_one.saved] == [2]
    version = await policies.get_policy(db, CAMPAIGN, 2)
    assert version.checkpoint is not None


async def test_a_step_that_is_trained_again_to_another_gradient_ends_a_reproducible_campaign(
    db: Database, tmp_path: Path
) -> None:
    await with_a_version_without_checkpoint(db, tmp_path)
    other = Backend(gradient="0" * 64)
    activities = TrainingActivities(db, tmp_path, other, 1)
    with pytest.raises(StampDiffers, match=r"step 1, trained again .* had another gradient"):
        await ActivityEnvironment().run(activities.train_step, STEP.model_copy(update={"step": 2}))
    assert other.saved == []


async def test_a_trainer_of_other_bits_ends_a_reproducible_campaign(
    db: Database, tmp_path: Path
) -> None:
    await planned_reproducible(db)
    backend = Backend(MADE_BY.model_copy(update={"cpu": "AuthenticAMD-avx512", "torch": "2.1"}))
    activities = TrainingActivities(db, tmp_path, backend, 1)
    with pytest.raises(StampDiffers, match=r"torch '2\.1' instead of '2\.0', cpu ") as caught:
        await ActivityEnvironment().run(activities.train_step, STEP)
    assert 'schedule = "fastest"' in caught.value.remedy
    assert (backend.num_steps, backend.saved) == (0, [])


def test_the_content_of_a_batch_does_not_depend_on_names() -> None:
    ids = np.arange(4, dtype=np.int32)
    floats = np.zeros(4, np.float32)
    sample = Sample("a-g00000-r0", 1, ids, ids > 1, floats, ids, floats)
    other = replace(sample, rollout="b-g00007-r0", branch=3)
    assert content_digest([sample]) == content_digest([other]) and digest([sample]) != digest(
        [other]
    )
    for field in ("token_ids", "action_mask", "logprobs", "versions", "advantages"):
        changed = getattr(sample, field).copy()
        changed[-1] = not changed[-1]
        assert content_digest([replace(sample, **{field: changed})]) != content_digest([sample])
    assert content_digest([sample, other]) != content_digest([sample])


async def test_ranks_are_started_ahead_of_the_step_that_needs_them(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "READY_LOOK_S", 0.01)
    await tasks.put_tasks(db, [task(0)])
    await campaigns.create(db, config())
    backend = Backend()
    ready = asyncio.create_task(
        TrainingActivities(db, tmp_path, backend, 1).stay_ready(CampaignId(CAMPAIGN))
    )
    await asyncio.sleep(0.2)
    assert backend.loaded == [], "there is no version to start from"
    await policies.put_first_policy(db, CampaignId(CAMPAIGN), "/models/v0", "/checkpoints/v0")
    for number in (1, 2):
        await until(lambda: len(backend.loaded) == number)  # noqa: B023 (awaited here)
        assert backend.loaded[-1] == (Path("/checkpoints/v0"), 0)
        backend.has_died = True
    await campaigns.set_status(db, CampaignId(CAMPAIGN), CampaignStatus.CANCELLED)
    await asyncio.sleep(0.1)
    backend.has_died, num_loaded = True, len(backend.loaded)
    await asyncio.sleep(0.2)
    assert len(backend.loaded) == num_loaded, "the campaign has ended"
    ready.cancel()
