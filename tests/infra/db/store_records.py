"""Records to put into the store: a campaign, its tasks and groups, replies and results."""

import random

from infra.db.database import Database
from infra.db.rollouts import groups, rollouts
from infra.db.rollouts.groups import NewRollout
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.db.training import policies
from mainspring.config.campaign import CampaignConfig
from mainspring.config.trainer import TrainerConfig
from mainspring.config.training.optimizer import WarmStartConfig
from mainspring.ids import CampaignId, GroupId, RolloutId, TaskId, group_id, rollout_id
from mainspring.status import GroupKind, StopReason, Verdict
from mainspring.tasks.swe_task import SweTask
from mainspring.trajectories.turns import Call, Execution, VersionSpan

CAMPAIGN = CampaignId("first")
RUN = "run-a"


def config(name: str = CAMPAIGN, **trainer: int) -> CampaignConfig:
    return CampaignConfig(name=name, trainer=TrainerConfig(warm_start=WarmStartConfig(), **trainer))


def task(number: int, *, split: str = "train", issue: str = "Fix it.") -> SweTask:
    return SweTask(
        id=TaskId(f"{split}-{number}"),
        source="made-up",
        split=split,
        issue=issue,
        files={"a.py": "x = 1\n"},
        test_command="true",
    )


async def begin_campaign(db: Database, name: str = CAMPAIGN) -> CampaignId:
    """A campaign with one task and policy version 0."""
    await tasks.put_tasks(db, [task(0)])
    await campaigns.create(db, config(name))
    await policies.put_first_policy(db, CampaignId(name), "/models/v0", "/checkpoints/v0")
    return CampaignId(name)


async def add_group(
    db: Database,
    index: int = 0,
    size: int = 2,
    campaign: CampaignId = CAMPAIGN,
    draw: int | None = None,
) -> tuple[GroupId, list[RolloutId]]:
    group = group_id(campaign, index)
    made = await groups.create_group(
        db,
        group,
        campaign,
        GroupKind.TRAIN,
        index=index,
        draw=draw,
        task=task(0).id,
        policy_version=0,
        split="train",
        rollouts=[NewRollout(rollout_id(group, i), task(0).id, i, 1.0) for i in range(size)],
    )
    assert made.id == group
    return group, [rollout_id(group, i) for i in range(size)]


async def add_claimed_rollout(db: Database) -> RolloutId:
    """A campaign's first rollout, claimed by RUN, in epoch 0."""
    await begin_campaign(db)
    _, [rollout] = await add_group(db, size=1)
    assert (await rollouts.claim(db, rollout, RUN)).epoch == 0
    return rollout


async def add_ready_group(
    db: Database, index: int, campaign: CampaignId = CAMPAIGN, draw: int | None = None
) -> GroupId:
    """Two rollouts of two turns each, one resolved and one not. `draw`: in a reproducible
    campaign."""
    group, ids = await add_group(db, index, 2, campaign, draw)
    for id, reward in zip(ids, (1.0, 0.0), strict=True):
        claim = await rollouts.claim(db, id, RUN)
        await put_two_turns(db, id, claim.epoch, seed=f"{id}")
        await finish(db, id, claim.epoch, reward)
    await groups.finish_group(db, group)
    return group


async def put_two_turns(db: Database, rollout: RolloutId, epoch: int, seed: str) -> None:
    from infra.db.rollouts import turns

    first = call(0, 0, seed)
    await turns.put_call(db, rollout, epoch, first)
    await turns.put_call(db, rollout, epoch, call(1, first.end, seed))


_VERDICTS = {None: None, 1.0: Verdict.RESOLVED}


async def finish(
    db: Database, rollout: RolloutId, epoch: int, reward: float | None
) -> float | None:
    return await rollouts.finish(
        db,
        rollout,
        epoch,
        stop_reason=StopReason.INFRA_FAULT if reward is None else StopReason.SUBMITTED,
        verdict=_VERDICTS.get(reward, Verdict.NOT_RESOLVED),
        reward=reward,
        fault="the node died" if reward is None else None,
        num_turns=2,
        phase_s={"generate": 1.5},
    )


def call(turn: int, start: int, seed: str = "", num_prompt: int = 7, num_reply: int = 5) -> Call:
    """A reply whose tokens are drawn from `seed`; log-probs exactly representable in float32."""
    draw = random.Random(f"{seed}/{turn}")
    return Call(
        number=turn,
        parent=turn - 1 if turn else None,
        prompt_start=start,
        prompt_ids=tuple(draw.randrange(150_000) for _ in range(num_prompt)),
        completion_ids=tuple(draw.randrange(150_000) for _ in range(num_reply)),
        logprobs=tuple(-draw.randrange(4096) / 256 for _ in range(num_reply)),
        spans=(VersionSpan(0, 0, 2), VersionSpan(1, 2, num_reply)),
        text=f"reply {turn} of {seed}",
        finish_reason="stop",
        latency_s=0.25,
    )


def execution(turn: int, output: bytes = b"done\n") -> Execution:
    return Execution(
        call=turn,
        index=0,
        command=f"echo {turn}",
        returncode=0,
        output=output,
        truncated=False,
        timed_out=False,
        wall_s=0.5,
        reward=turn / 4,
        is_over=turn == 3,
    )
