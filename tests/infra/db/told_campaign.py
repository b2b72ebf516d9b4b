"""A campaign of one step in a real store: measured before and after, with rollouts of each end."""

from typing import Any

from infra.db.database import Database
from infra.db.rollouts import groups, rollouts, turns
from infra.db.rollouts.groups import NewRollout
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.db.training import policies, steps
from mainspring.config.campaign import CampaignConfig
from mainspring.ids import (
    CampaignId,
    GroupId,
    RolloutId,
    TaskId,
    eval_group_id,
    group_id,
    rollout_id,
)
from mainspring.status import CampaignStatus, GroupKind, Sampling, StopReason, Suspicion, Verdict
from mainspring.tasks.swe_task import SweTask
from mainspring.trajectories.turns import Call, Execution, VersionSpan

NAME = CampaignId("told")
COMMAND = "cat a.py"
METRICS = {
    "loss": 0.1,
    "grad_norm": 0.5,
    "entropy": 0.3,
    "clip_fraction": 0.01,
    "kl": 0.002,
    "lr": 1e-3,
    "logprob_gap_max": 2e-5,
    "num_gap_tokens": 12.0,
    "seconds": 1.5,
    "reward_mean": 0.5,
    "mixed_groups": 1.0,
    "staleness_mean": 0.25,
    "own_figure": 0.75,
}


def task(number: int) -> SweTask:
    return SweTask(
        id=TaskId(f"task-{number}"),
        source="made-up",
        split="heldout",
        issue=f"a.py is wrong in way {number}",
        files={"a.py": "x = 1\n"},
        test_command="true",
    )


async def play(
    db: Database, rollout: RolloutId, reward: float | None, suspicions: tuple[Suspicion, ...] = ()
) -> None:
    """One turn with a command, one without, then the end that gives this reward."""
    epoch = (await rollouts.claim(db, rollout, "run")).epoch
    start = 0
    for turn, text in enumerate((f"```bash\n{COMMAND}\n```", "no command")):
        reply = Call(
            number=turn,
            parent=turn - 1 if turn else None,
            prompt_start=start,
            prompt_ids=(1, 2, 3),
            completion_ids=(4, 5),
            logprobs=(-0.5, -0.25),
            spans=(VersionSpan(0, 0, 2),),
            text=text,
            finish_reason="stop",
            latency_s=0.2,
        )
        await turns.put_call(db, rollout, epoch, reply)
        start = reply.end
    await turns.put_intent(db, rollout, epoch, 0, 0, COMMAND)
    ran = Execution(0, 0, COMMAND, 0, b"x = 1\xff\n", truncated=False, timed_out=False, wall_s=0.1)
    await turns.put_execution(db, rollout, epoch, ran)
    verdicts = {None: Verdict.FAULT, 0.0: Verdict.NOT_RESOLVED, 1.0: Verdict.RESOLVED}
    await rollouts.finish(
        db,
        rollout,
        epoch,
        stop_reason=StopReason.INFRA_FAULT if reward is None else StopReason.STEP_LIMIT,
        verdict=verdicts[reward],
        reward=reward,
        fault=None,
        num_turns=2,
        phase_s={"grade": 0.4, "generate": 0.5, "open": 0.1},
        reward_parts=None if reward is None else {"outcome": reward, "length": -0.5},
        suspicions=suspicions,
    )


async def group_of(
    db: Database,
    group: GroupId,
    kind: GroupKind,
    rewards: list[float | None],
    *,
    version: int = 0,
    sampling: Sampling = Sampling.SAMPLED,
    finished: bool = True,
    suspicious: dict[int, tuple[Suspicion, ...]] | None = None,
) -> None:
    train = kind is GroupKind.TRAIN
    await groups.create_group(
        db,
        group,
        NAME,
        kind,
        policy_version=version,
        split="train" if train else "heldout",
        rollouts=[
            NewRollout(rollout_id(group, i), task(0 if train else i).id, i, 1.0)
            for i in range(len(rewards))
        ],
        sampling=sampling,
        index=0 if train else None,
        task=task(0).id if train else None,
    )
    for i, reward in enumerate(rewards):
        if finished or i == 0:
            await play(db, rollout_id(group, i), reward, (suspicious or {}).get(i, ()))
    if finished:
        await groups.finish_group(db, group)


async def evaluate(
    db: Database, version: int, rewards: list[float | None], *, greedy: bool = False, **more: Any
) -> None:
    sampling = Sampling.GREEDY if greedy else Sampling.SAMPLED
    group = eval_group_id(NAME, "heldout", sampling, version)
    await group_of(db, group, GroupKind.EVAL, rewards, version=version, sampling=sampling, **more)


async def tell(db: Database) -> None:
    config = {"name": NAME, "seed": 5, "trainer": {"num_steps": 1, "warm_start": {}}}
    await tasks.put_tasks(db, [task(number) for number in range(4)])
    await campaigns.create(db, CampaignConfig.model_validate(config))
    await policies.put_first_policy(db, NAME, "/v0")
    await evaluate(db, 0, [0.0, 0.0, 1.0, None])
    await evaluate(db, 0, [1.0, 0.0], greedy=True)
    await policies.put_gap(db, NAME, 0, 3e-5, 40)
    marked = {1: (Suspicion.SEARCHED_HISTORY, Suspicion.EDITED_TESTS)}
    await group_of(db, group_id(NAME, 0), GroupKind.TRAIN, [1.0, 0.0], suspicious=marked)
    assert await steps.plan_step(db, NAME, 1, 1) == [group_id(NAME, 0)]
    await steps.commit_step(db, NAME, 1, metrics=METRICS, policy_path="/v1", checkpoint="/v1")
    await evaluate(db, 1, [1.0, 0.0, 1.0, 1.0], suspicious={2: (Suspicion.EDITED_TESTS,)})
    await evaluate(db, 1, [1.0, 1.0], greedy=True, finished=False)
    await campaigns.set_status(db, NAME, CampaignStatus.FINISHED)
