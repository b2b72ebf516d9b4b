"""A task that asks for an agent which does not exist is refused before anything is stored."""

import uuid

import pytest

from cli.operations import campaign_launch as launch
from cli.operations.embedded_stack import StackInfo
from infra.db import campaigns, tasks
from infra.db.database import Database
from mainspring.config.evaluation import EvaluationConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.tasks import TasksConfig
from mainspring.errors import UsageError
from mainspring.ids import CampaignId, TaskId
from mainspring.status import Unverified
from mainspring.tasks.swe_task import SweTask


@pytest.mark.parametrize("agent", [None, "", "bash", "mini"])
async def test_only_known_agents(stack: StackInfo, agent: str | None) -> None:
    name = f"agent-{uuid.uuid4().hex[:8]}"
    config = EvaluationConfig(
        name=name,
        tasks=TasksConfig(source=name, unverified=Unverified.USE),
        policy=PolicyConfig(model="scripted"),
        split="train",
    )
    task = SweTask(
        id=TaskId(name),
        source=name,
        split="train",
        issue="x",
        files={"a": ""},
        test_command="true",
        agent_name=agent,
    )
    async with Database.open(stack.database_url) as db:
        await tasks.put_tasks(db, [task])
        if agent == "mini":
            with pytest.raises(UsageError, match=f"task {name} asks for the agent 'mini'"):
                await launch.create(db, config)
            assert await campaigns.find(db, CampaignId(name)) is None
        else:
            await launch.create(db, config)
