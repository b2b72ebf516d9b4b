"""A reproducible campaign trains the same calls in the same order, whatever is done to it.

The policy's replies follow from the seeds it is sent, as an engine's do, so every seed that depends
on time or on an interruption shows in the tokens that the steps were trained on.
"""

import asyncio
import contextlib
import itertools
import random

from finished import has_ended
from resetting import reset
from scripted import SUBMIT, bash
from scripted_trainer import FIX, Hold, small_config, trainer_of, until_reached
from temporalio.client import WorkflowFailureError

from cli.operations.runs import campaign_launch as launch
from infra.db.reading import deviations
from infra.db.reading.fingerprints import call_digests
from infra.db.rollouts import groups
from infra.db.runs import campaigns
from infra.db.training import steps
from mainspring.algorithms.schedule import Schedule
from mainspring.config.campaign import CampaignConfig
from mainspring.ids import CampaignId, campaign_workflow
from mainspring.status import CampaignStatus, GroupKind, GroupStatus
from mainspring.trajectories.seeds import call_seed, draw_seed
from tests.waiting import until

NUM_STEPS, PER_STEP, STALENESS = 3, 2, 1


def say(seed: int, turn: int) -> str:
    """Half of the rollouts solve the task, so about half of the groups are flat."""
    if turn == 0:
        return FIX if solves(seed) else bash(f"echo {seed}")
    return SUBMIT


def solves(seed: int) -> bool:
    return seed % 2 == 0


def with_a_flat_group(config: CampaignConfig) -> CampaignConfig:
    """With a seed under which the first draw is flat, whichever task it has: the names of the tasks
    are other ones in each run."""

    def is_flat(seed: int, task: str) -> bool:
        drawn = (draw_seed(seed, task, 0, n) for n in range(config.trainer.group_size))
        return len({solves(call_seed(each, 0)) for each in drawn}) == 1

    tasks = [f"{config.tasks.source}-train-{n}" for n in range(2)]
    seeds = (n for n in itertools.count() if all(is_flat(n, task) for task in tasks))
    return config.model_copy(update={"seed": next(seeds)})


async def reproducible_config(cluster, name: str, like: CampaignConfig | None) -> CampaignConfig:
    """Two campaigns are compared that have the same tasks."""
    made = like or with_a_flat_group(
        await small_config(
            cluster,
            num_steps=NUM_STEPS,
            groups_per_step=PER_STEP,
            max_staleness=STALENESS,
            device="cpu",
        )
    )
    changed = {"name": f"{made.tasks.source}-{name}", "schedule": Schedule.REPRODUCIBLE}
    return CampaignConfig.model_validate(made.model_dump() | changed)


def delay(cluster, config: CampaignConfig, hold: Hold, rng: random.Random) -> None:
    """Replies of this campaign take their time, and it is held where `hold` asks for."""
    before = cluster.policy.hold

    async def wait(name: str) -> None:
        if before is not None:
            await before(name)
        if config.name in name:
            await hold.at(name)
            await asyncio.sleep(rng.random() * 0.05)

    cluster.policy.hold = wait


async def finish(cluster, config: CampaignConfig, hold: Hold, ways: dict[str, str]) -> CampaignId:
    """Interrupt the campaign in the way given for each point, and let it finish."""
    campaign = await launch.create(cluster.db, config)
    async with trainer_of(cluster, campaign, hold):
        await launch.start(cluster.client, cluster.db, campaign)
        handle = cluster.client.get_workflow_handle(campaign_workflow(campaign))
        for way, following in zip(ways.values(), (*[*ways][1:], "nowhere"), strict=False):
            await until_reached(hold)
            if way == "reset":
                await reset(cluster, handle, share=0.5)
                hold.move(following)
                continue
            await (handle.cancel() if way == "cancel" else handle.terminate())
            hold.move(following)
            with contextlib.suppress(WorkflowFailureError):
                await handle.result()
            await launch.start(cluster.client, cluster.db, campaign)
        await until(lambda: has_ended(cluster, campaign))
    assert (await campaigns.get(cluster.db, campaign)).status is CampaignStatus.FINISHED
    return campaign


async def trained(cluster, campaign: CampaignId) -> dict[int, dict[str, str]]:
    async with cluster.db.snapshot() as connection:
        return await call_digests(connection, campaign)


async def check_versions(cluster, campaign: CampaignId) -> None:
    for step in range(1, NUM_STEPS + 1):
        for group in await steps.step_groups(cluster.db, campaign, step):
            version = (await groups.get(cluster.db, group)).policy_version
            assert version == max(0, step - 1 - STALENESS), (step, group)
            asked = [v for name, v in cluster.policy.versions.items() if name.startswith(group)]
            assert asked
            assert {(each.at_least, each.only) for each in asked} == {(version, True)}


async def test_the_same_calls_are_trained_whatever_happens(cluster) -> None:
    cluster.policy.say_by_seed = say
    plain = await reproducible_config(cluster, "plain", None)
    changed = {
        "disturbed": {
            "/v0": "terminate",
            "train 1": "cancel",
            "/v1": "reset",
            "train 2": "terminate",
            "train 3": "reset",
        },
    }
    runs = [(plain, Hold("nowhere"), {})]
    for name, ways in changed.items():
        runs.append((await reproducible_config(cluster, name, plain), Hold(next(iter(ways))), ways))
    for number, (config, hold, _) in enumerate(runs):
        delay(cluster, config, hold, random.Random(number))
    ended = await asyncio.gather(*(finish(cluster, *each) for each in runs))
    expected = await trained(cluster, ended[0])
    assert [*expected] == [1, 2, 3]
    stored = await groups.list_groups(cluster.db, ended[0], GroupKind.TRAIN)
    assert any(each.status is GroupStatus.FLAT for each in stored)
    for campaign, (config, _, _) in zip(ended, runs, strict=True):
        assert await trained(cluster, campaign) == expected, config.name
        await check_versions(cluster, campaign)
        assert config.batches is not None
        async with cluster.db.snapshot() as connection:
            assert await deviations.read(connection, campaign, config.batches) == []
