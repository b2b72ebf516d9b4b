"""Runs whose tasks are played by several agents, programs among them, as their rows ask for."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster import BUGGY, TEST
from program_checks import EDIT, THREE
from program_cluster import ProgramCluster
from scripted import SUBMIT, bash
from temporalio.client import WorkflowHandle

from infra.db.rollouts import groups
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from mainspring.config.campaign import CampaignConfig
from mainspring.ids import CampaignId, GroupId, RolloutId, TaskId, group_id, rollout_id
from mainspring.protocol.rollout import RolloutResult
from mainspring.status import GroupKind
from mainspring.tasks.any_task import AnyTask
from mainspring.tasks.own_task import OwnTask
from mainspring.tasks.swe_task import SweTask

GAME = "You have twelve steps."
COUNTED = ("1", "2", "3")
BLOCKS = (bash("cat calc.py"), bash(EDIT), SUBMIT)


def says(prompt: str, turn: int) -> str:
    """Replies that fit the agent that asks."""
    if GAME in prompt:
        return COUNTED[turn]
    return (BLOCKS if "THOUGHT" in prompt else THREE)[turn]


@dataclass(slots=True)
class Mixed:
    campaign: CampaignId
    groups: dict[str | None, GroupId]
    """By the agent that the row of its task asks for."""
    rollouts: dict[str | None, RolloutId]

    async def start(
        self, cluster: ProgramCluster, asked: str | None
    ) -> WorkflowHandle[Any, RolloutResult]:
        return await cluster.workers.start(self.rollouts[asked], self.campaign, self.groups[asked])

    async def play(self, cluster: ProgramCluster) -> dict[str | None, RolloutResult]:
        """All of them, at once."""
        handles = {asked: await self.start(cluster, asked) for asked in self.rollouts}
        return {asked: await handle.result() for asked, handle in handles.items()}


async def make(
    cluster: ProgramCluster,
    agent: Mapping[str, Any],
    agents: Mapping[str, Mapping[str, Any]],
    asked: tuple[str | None, ...],
    of_games: tuple[str, ...] = (),
    by_set: str | None = None,
) -> Mixed:
    """One task and one rollout for each that is asked for. `of_games`: those of them whose task is
    a game, which needs no sandbox. `by_set`: the agent of their set, for tasks that ask for
    none."""
    name = f"mixed-{uuid.uuid4().hex[:8]}"
    of_source: dict[str, Any] = {"source": name, "unverified": "use"}
    of_set = [of_source | {"name": "train", "agent": by_set}]
    config = CampaignConfig.model_validate(
        {
            "name": name,
            "agent": {"step_limit": 8, **agent},
            "agents": agents,
            "tasks": of_set if by_set else of_source,
            "policy": {"model": "scripted", "max_context": 100_000, "max_new_tokens": 25_000},
        }
    )
    db, mixed = cluster.workers.db, Mixed(CampaignId(name), {}, {})
    await campaigns.create(db, config)
    for index, each in enumerate(asked):
        task = _task(name, index, each, is_game=each in of_games)
        await tasks.put_tasks(db, [task])
        group = group_id(mixed.campaign, index)
        mixed.groups[each], mixed.rollouts[each] = group, rollout_id(group, 0)
        await groups.create_group(
            db,
            group,
            mixed.campaign,
            GroupKind.TRAIN,
            policy_version=0,
            split="train",
            index=index,
            task=task.id,
            rollouts=[groups.NewRollout(mixed.rollouts[each], task.id, 0, 1.0)],
        )
    return mixed


def _task(source: str, index: int, asked: str | None, *, is_game: bool) -> AnyTask:
    common = {"id": TaskId(f"{source}-{index}"), "source": source, "split": "train"}
    common["agent_name"] = asked
    if is_game:
        game = {"kind": "treasure", "issue": GAME, "data": {"data_idx": 1}}
        return OwnTask.model_validate({**common, **game})
    return SweTask.model_validate(
        {
            **common,
            "issue": "add subtracts",
            "files": {"calc.py": BUGGY},
            "tests": {"hidden_test.py": TEST},
            "test_command": "python3 hidden_test.py",
        }
    )
