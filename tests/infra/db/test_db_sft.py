"""Supervised runs in the store: all of a run becomes visible at once, and what stands stays."""

from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np
import pytest
from store_records import CAMPAIGN, add_ready_group, begin_campaign

from infra.db.database import Database
from infra.db.fence import UnknownId
from infra.db.rollouts import rollouts, turns
from infra.db.runs import campaigns
from infra.db.training import policies, sft, sft_sources, steps, trainers
from infra.db.training.sft import StoredSftData
from infra.db.training.sft_sources import Chosen
from mainspring.config.sft import SftConfig, SftSource
from mainspring.errors import UsageError
from mainspring.ids import CampaignId
from mainspring.status import CampaignStatus
from mainspring.training.training_faults import TrainerFenced
from mainspring.trajectories.imitation import to_imitate
from mainspring.trajectories.samples import Sample, digest, samples_of

RUN = CampaignId("imitates")


def config(**trainer: int) -> SftConfig:
    return SftConfig.model_validate(
        {
            "name": RUN,
            "data": {"sources": [{"campaign": CAMPAIGN}]},
            "trainer": {"device": "cpu", **trainer},
        }
    )


def made(number: int = 5) -> list[Sample]:
    rng = np.random.default_rng(3)
    samples = []
    for n in range(number):
        ids = rng.integers(0, 2**31 - 1, 3 + 8 * n).astype(np.int32)
        samples.append(to_imitate(f"file:{n}", n, ids, rng.random(len(ids)) < 0.5))
    return samples


async def each(samples: list[Sample], broken: bool = False) -> AsyncIterator[Sample]:
    for sample in samples:
        yield sample
    if broken:
        raise UsageError("line 6 is broken")


async def stored(db: Database) -> StoredSftData:
    return await sft.create(db, config(), each(made()), lambda data: replace(data, num_skipped=2))


async def test_samples_come_back_as_they_were_in_any_order(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sft, "CHUNK_BYTES", 100)
    data = await stored(db)
    assert await sft.data_of(db, RUN) == data
    assert (data.num_samples, data.num_skipped) == (5, 2)
    assert data.num_tokens == sum(len(sample.token_ids) for sample in made())
    assert data.num_trained_tokens == sum(sample.num_action_tokens for sample in made())
    order = [4, 0, 2, 4]
    found = await sft.samples_at(db, RUN, order)
    assert digest(found) == digest([made()[position] for position in order])
    assert (await campaigns.get(db, RUN)).config == config()
    with pytest.raises(UnknownId, match="sample 5 of supervised run imitates"):
        await sft.samples_at(db, RUN, [5])


async def test_a_run_that_is_refused_leaves_nothing(db: Database) -> None:
    def refuse(data: StoredSftData) -> StoredSftData:
        raise UsageError(f"{data.num_samples} samples are too few")

    with pytest.raises(UsageError, match="5 samples are too few"):
        await sft.create(db, config(), each(made()), refuse)
    with pytest.raises(UsageError, match="line 6"):
        await sft.create(db, config(), each(made(), broken=True), lambda data: data)
    assert await campaigns.find(db, RUN) is None
    first = await stored(db)
    with pytest.raises(UsageError, match="by another command just now"):
        await sft.create(db, config(), each([]), lambda data: data)
    assert await sft.data_of(db, RUN) == first


async def test_the_same_data_has_one_digest(db: Database) -> None:
    first = await stored(db)
    renamed = config().model_copy(update={"name": "again"})
    again = await sft.create(db, renamed, each(made()), lambda data: data)
    assert again.digest == first.digest
    fewer = config().model_copy(update={"name": "fewer"})
    assert (await sft.create(db, fewer, each(made(4)), lambda data: data)).digest != first.digest


async def test_what_is_written_first_stands_and_an_older_trainer_writes_nothing(
    db: Database,
) -> None:
    await stored(db)
    await trainers.take(db, RUN, owner="a", process="pa")

    async def put(step: int, loss: float, epoch: int) -> CampaignStatus:
        return await sft.put_step(
            db, RUN, step, version=0, metrics={"loss": loss}, trainer_epoch=epoch
        )

    assert await put(1, 2.0, 1) is CampaignStatus.CREATED
    await campaigns.set_status(db, RUN, CampaignStatus.PAUSED)
    assert await put(1, 3.0, 1) is CampaignStatus.PAUSED
    await trainers.take(db, RUN, owner="b", process="pb", ended="pa")
    with pytest.raises(TrainerFenced):
        await put(2, 1.0, 1)
    with pytest.raises(TrainerFenced):
        await sft.put_version(db, RUN, 1, path="/p", checkpoint="/c", trainer_epoch=1)
    await put(2, 1.5, 2)
    assert await sft.losses(db, RUN) == [2.0, 1.5]
    assert await sft.progress(db, RUN) == (2, {"loss": 1.5})
    for path in ("/first", "/second"):
        await sft.put_version(db, RUN, 2, path=path, checkpoint=path, trainer_epoch=2)
    newest = await policies.latest_policy(db, RUN)
    assert newest is not None and (newest.version, newest.path) == (2, "/first")
    assert [each.step for each in await steps.list_steps(db, RUN)] == [1, 2]


async def chosen(db: Database, **source: float) -> tuple[list[Sample], str]:
    counts = Chosen()
    asked = SftSource.model_validate({"campaign": CAMPAIGN, **source})
    found = [sample async for sample in sft_sources.samples(db, CAMPAIGN, asked, counts)]
    return found, str(counts)


async def test_rollouts_are_chosen_by_what_became_of_them(db: Database) -> None:
    await begin_campaign(db)
    for index in range(3):  # of two rollouts each: one resolved, one not
        await add_ready_group(db, index)
    solved, told = await chosen(db)
    assert told == "3 of 6 rollouts (3 not resolved)"
    names = [f"{CAMPAIGN}/g00000{n}/000" for n in range(3)]
    assert [sample.rollout for sample in solved] == names
    # In the tokens that were served, of which only the policy's own are trained.
    record = await rollouts.get(db, solved[0].rollout)
    calls, _ = await turns.history(db, record.id, record.epoch)
    [served] = samples_of(record.id, calls)
    assert solved[0].token_ids.tolist() == served.token_ids.tolist()
    assert solved[0].action_mask.tolist() == served.action_mask.tolist()
    everything, told = await chosen(db, min_reward=0.0)
    assert (len(everything), told) == (6, "6 of 6 rollouts")
    one, told = await chosen(db, max_per_task=1)
    assert [sample.rollout for sample in one] == names[:1]
    assert told == "1 of 6 rollouts (3 not resolved, 2 beyond max_per_task)"
    none, told = await chosen(db, max_version=0)
    assert not none and "3 of other policy versions" in told
    assert len((await chosen(db, min_version=0, max_version=1))[0]) == 3
    assert (await chosen(db, min_reward=2.0))[1] == "0 of 6 rollouts (6 with a reward below 2)"
