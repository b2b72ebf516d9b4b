"""The rollouts of each part of a run, by one rule for each kind of run.

Invariants: a part is one group; which rollouts it holds follows from what is stored and does not
change once the part is there; a campaign plays evaluations of its policy here, one part each, and
its training groups elsewhere. Imported by the activities of runs and by what shows or exports them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import assert_never

from sqlalchemy import Select, func, select

from infra.db.database import Database
from infra.db.rollouts.groups import NewRollout
from infra.db.tables.models import GroupRow, RolloutRow
from infra.db.tables.rollout_ends import DONE
from infra.db.tasks import selections
from mainspring.algorithms.schedule import Schedule
from mainspring.config.any_run import AnyRun, Measurement, training
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.evaluations.regrade import RegradeConfig
from mainspring.config.evaluations.verification import VerificationConfig
from mainspring.config.sft import SftConfig
from mainspring.ids import (
    CampaignId,
    GroupId,
    RolloutId,
    TaskId,
    eval_group_id,
    rollout_id,
    run_group_id,
)
from mainspring.protocol.run import MAX_GROUP_SIZE, PolicyEvaluation
from mainspring.status import Player, Sampling
from mainspring.trajectories.seeds import evaluation_seed

_Way = tuple[Player, str | None]
"""Who makes a patch, and the exploit's name."""


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    split: str
    sampling: Sampling
    rollouts: list[NewRollout]
    policy_version: int = 0
    index: int | None = None


def part_id(run: CampaignId, index: int, evaluation: PolicyEvaluation | None = None) -> GroupId:
    """The id of the group that is the run's part `index`."""
    if evaluation is None:
        return run_group_id(run, index)
    sampling = Sampling.GREEDY if evaluation.greedy else Sampling.SAMPLED
    return eval_group_id(run, evaluation.split, sampling, evaluation.policy_version)


async def planned(
    db: Database, config: AnyRun, index: int, evaluation: PolicyEvaluation | None = None
) -> PlannedGroup:
    """Part number `index`; without rollouts after the last."""
    group = part_id(CampaignId(config.name), index, evaluation)
    match config:
        case CampaignConfig() | SftConfig():
            assert evaluation is not None, "a campaign's other groups are made one by one"
            return await _of_policy(db, training(config), group, evaluation)
        case EvaluationConfig():
            rollouts = await _of_tasks(db, config, group, index, _ways(config))
        case VerificationConfig():
            rollouts = await _of_tasks(db, config, group, index, _ways(config))
        case RegradeConfig():
            rollouts = await _of_patches(db, config, group, index)
        case _:
            assert_never(config)
    sampling = Sampling.GREEDY if config.policy.temperature == 0 else Sampling.SAMPLED
    return PlannedGroup(config.split, sampling, rollouts, index=index)


async def total(db: Database, config: Measurement) -> int:
    """How many rollouts the run will have in the end."""
    if isinstance(config, RegradeConfig):
        return await num_patches(db, CampaignId(config.of))
    async with db.transaction() as connection:
        num_tasks = await selections.size(connection, config, config.split)
    return num_tasks * len(_ways(config))


async def num_patches(db: Database, campaign: CampaignId) -> int:
    """How many rollouts of the campaign left a patch that can be graded again."""
    patches = _given_patches(campaign).subquery()
    async with db.transaction() as connection:
        return await connection.scalar(select(func.count()).select_from(patches)) or 0


def _ways(config: EvaluationConfig | VerificationConfig) -> list[_Way]:
    """Who makes the patches of one task, one entry a rollout."""
    if isinstance(config, EvaluationConfig):
        return [(Player.POLICY, None)] * config.samples
    ways: list[_Way] = []
    for player in config.players:
        names = config.exploits if player is Player.EXPLOIT else (None,)
        ways += [(player, name) for name in names for _ in range(config.samples)]
    return ways


async def _of_policy(
    db: Database, config: CampaignConfig, group: GroupId, evaluation: PolicyEvaluation
) -> PlannedGroup:
    """One rollout a task of the split."""
    limit = config.evaluation.greedy_tasks if evaluation.greedy else None
    ids = await selections.task_ids(db, config, evaluation.split, number=limit)
    temperature = config.evaluation.temperature_of(evaluation.split, greedy=evaluation.greedy)
    version = evaluation.policy_version
    seeded = config.schedule is Schedule.REPRODUCIBLE
    return PlannedGroup(
        evaluation.split,
        Sampling.GREEDY if evaluation.greedy else Sampling.SAMPLED,
        [
            NewRollout(
                rollout_id(group, i),
                task,
                i,
                temperature,
                seed=evaluation_seed(config.seed, task, version, i) if seeded else None,
            )
            for i, task in enumerate(ids)
        ],
        policy_version=version,
    )


async def _of_tasks(
    db: Database,
    config: EvaluationConfig | VerificationConfig,
    group: GroupId,
    index: int,
    ways: Sequence[_Way],
) -> list[NewRollout]:
    """Whole tasks, as many as a group holds."""
    num_tasks = max(1, MAX_GROUP_SIZE // len(ways))
    ids = await selections.task_ids(db, config, config.split, index * num_tasks, num_tasks)
    temperature = config.policy.rollout_temperature
    return [
        NewRollout(rollout_id(group, number), task, number, temperature, player, exploit=exploit)
        for number, (task, (player, exploit)) in enumerate(product(ids, ways))
    ]


async def _of_patches(
    db: Database, config: RegradeConfig, group: GroupId, index: int
) -> list[NewRollout]:
    """Those after the last of the parts before, so that each is graded once whatever happens to
    the other campaign meanwhile."""
    async with db.transaction() as connection:
        last = await connection.scalar(
            select(func.max(RolloutRow.source_rollout_id))
            .join(GroupRow, GroupRow.id == RolloutRow.group_id)
            .where(RolloutRow.campaign_id == config.name, GroupRow.index < index)
        )
        patches = _given_patches(config.of).order_by(RolloutRow.id)
        if last is not None:
            patches = patches.where(RolloutRow.id > last)
        rows = await connection.execute(patches.limit(MAX_GROUP_SIZE))
        return [
            NewRollout(
                rollout_id(group, number),
                TaskId(task),
                number,
                temperature,
                Player.STORED,
                RolloutId(source),
            )
            for number, (source, task, temperature) in enumerate(rows)
        ]


def _given_patches(campaign: str) -> Select[tuple[str, str, float]]:
    """Rollouts that ended with a patch: others have nothing to grade."""
    return select(RolloutRow.id, RolloutRow.task_id, RolloutRow.temperature).where(
        RolloutRow.campaign_id == campaign,
        DONE,
        RolloutRow.patch.is_not(None),
    )
