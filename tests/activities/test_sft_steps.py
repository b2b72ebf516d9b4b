"""The steps of a supervised run on one store: every attempt computes the same, a pause makes a
version where it is, and what an attempt has made is not made again."""

from pathlib import Path

import pytest
from temporalio.testing import ActivityEnvironment

from activities.training.sft import SftActivities
from activities.training.sft_training import SftTrainingActivities
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.training import policies, sft, trainers
from mainspring.ids import CampaignId
from mainspring.protocol.sft import SftStepsInput, SftSurveyInput
from mainspring.status import CampaignStatus
from mainspring.training.training_faults import TrainerFenced, TrainerLost
from tests.infra.db.test_db_sft import RUN, config, each, made
from tests.sft_backend import SftTrainer

NUM_STEPS, EVERY = 10, 4


@pytest.fixture
async def backend(db: Database) -> SftTrainer:
    run = config(num_steps=NUM_STEPS, batch_size=2, checkpoint_every=EVERY, keep_checkpoints=1)
    await sft.create(db, run, each(made()), lambda data: data)
    await trainers.take(db, RUN, owner="a", process="pa")
    return SftTrainer(NUM_STEPS)


async def attempt(db: Database, home: Path, backend: SftTrainer, epoch: int = 1) -> int:
    """One attempt at what is next; the version that stands then."""
    activities = SftTrainingActivities(db, home, backend, epoch)
    survey = await SftActivities(db).survey_sft(
        SftSurveyInput(campaign=RUN, status=CampaignStatus.RUNNING)
    )
    if survey.version is None:
        directory = activities._directory(CampaignId(RUN), 0)
        directory.mkdir(parents=True)
        await policies.put_first_policy(db, RUN, f"{directory}/hf", str(directory))
        return 0
    asked = SftStepsInput(campaign=RUN, version=survey.version, last=survey.next_version)
    done = await ActivityEnvironment().run(activities.sft_steps, asked)
    again = await ActivityEnvironment().run(activities.sft_steps, asked)
    assert again.version == done.version  # an attempt that did not hear of its success
    return done.version


async def test_every_version_in_turn_and_only_the_newest_files(
    db: Database, tmp_path: Path, backend: SftTrainer
) -> None:
    assert [await attempt(db, tmp_path, backend) for _ in range(4)] == [0, 4, 8, 10]
    assert [step for step, _ in backend.steps] == list(range(1, 11))
    assert backend.loaded == [0, 4, 8]
    assert len({batch for _, batch in backend.saved}) == 3
    left = sorted(path.name for path in (tmp_path / "campaigns" / RUN / "policies").iterdir())
    assert left == ["v00000", "v00010"]
    assert [each.version for each in await policies.list_policies(db, RUN)] == [0, 4, 8, 10]
    _, figures = await sft.progress(db, RUN)
    assert figures["loss"] == 0.1 and figures["lr"] == pytest.approx(1e-6)
    assert figures["num_samples"] == 2 and figures["epoch"] == 4.0


async def test_steps_after_a_lost_rank_are_those_before_it(
    db: Database, tmp_path: Path, backend: SftTrainer
) -> None:
    await attempt(db, tmp_path, backend)
    backend.ends_at = 3
    with pytest.raises(TrainerLost):
        await attempt(db, tmp_path, backend)
    assert await sft.progress(db, RUN) == (2, (await sft.progress(db, RUN))[1])
    assert await attempt(db, tmp_path, backend) == 4
    assert backend.steps[:2] == backend.steps[2:4]
    assert [step for step, _ in backend.steps] == [1, 2, 1, 2, 3, 4]


async def test_a_paused_run_makes_a_version_where_it_is(
    db: Database, tmp_path: Path, backend: SftTrainer
) -> None:
    await attempt(db, tmp_path, backend)
    activities = SftTrainingActivities(db, tmp_path, backend, 1)
    await campaigns.set_status(db, RUN, CampaignStatus.PAUSED)
    asked = SftStepsInput(campaign=RUN, version=0, last=4)
    assert (await ActivityEnvironment().run(activities.sft_steps, asked)).version == 1
    # Then up to the version that was due, not a whole number of steps further.
    assert await attempt(db, tmp_path, backend) == 4
    assert [step for step, _ in backend.steps] == [1, 2, 3, 4]


async def test_a_trainer_that_was_replaced_makes_nothing_visible(
    db: Database, tmp_path: Path, backend: SftTrainer
) -> None:
    await attempt(db, tmp_path, backend)
    await trainers.take(db, RUN, owner="b", process="pb", ended="pa")
    with pytest.raises(TrainerFenced):
        await attempt(db, tmp_path, backend, epoch=1)
    assert backend.saved == [] and (await sft.progress(db, RUN))[0] == 0
    assert await attempt(db, tmp_path, backend, epoch=2) == 4
