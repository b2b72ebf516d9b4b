"""A campaign that measures what its engines serve: no policy of its own is stored."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.testing import ActivityEnvironment

from activities.replies.replies import ReplyActivities
from infra.db.cache import FactCache
from infra.db.database import Database
from infra.db.rollouts import groups, rollouts, turns
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.policy.serving import ServedCampaigns, serve_over_http
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.policy import PolicyConfig
from mainspring.ids import CampaignId, RolloutId, TaskId, rollout_id, run_group_id
from mainspring.protocol.rollout import GenerateInput
from mainspring.status import GroupKind
from mainspring.tasks.swe_task import SweTask
from mainspring.trajectories.tree import check_tree
from mainspring.trajectories.turns import VersionSpan
from migrations import upgrade
from tests.infra.policy.engines import serving
from tests.infra.policy.tiny_model import save_tiny_model


@pytest.fixture
async def db(fresh_database: str) -> AsyncIterator[Database]:
    await asyncio.to_thread(upgrade.upgrade, fresh_database)
    async with Database.open(fresh_database, pool_size=2) as database:
        yield database


async def add_rollout(db: Database, policy: PolicyConfig) -> RolloutId:
    name = CampaignId("measured")
    task = SweTask(
        id=TaskId("one"),
        source="tests",
        split="test",
        issue="add subtracts",
        files={"calc.py": ""},
        test_command="true",
    )
    await tasks.put_tasks(db, [task])
    await campaigns.create(db, EvaluationConfig(name=name, policy=policy))
    group = run_group_id(name, 0)
    rollout = rollout_id(group, 0)
    await groups.create_group(
        db,
        group,
        name,
        GroupKind.EVAL,
        index=0,
        policy_version=0,
        split="test",
        rollouts=[groups.NewRollout(rollout, task.id, 0, 1.0)],
    )
    await rollouts.claim(db, rollout, "run")
    return rollout


@pytest.mark.parametrize("served", ["default", "17"])
async def test_it_takes_the_weights_that_are_served(
    db: Database, tmp_path: Path, served: str
) -> None:
    model = save_tiny_model(tmp_path / "model")
    with serving(model, weight_version=served) as engine:
        policy = PolicyConfig(
            model=str(model), engines=(engine,), max_context=2000, max_new_tokens=12
        )
        rollout = await add_rollout(db, policy)
        campaigns_served = ServedCampaigns(db, serve_over_http)
        activities = ReplyActivities(db, FactCache(db), campaigns_served)
        ask = GenerateInput(rollout=rollout, epoch=0, turn=0, min_policy_version=0)
        first = await ActivityEnvironment().run(activities.generate, ask)
        again = await ActivityEnvironment().run(activities.generate, ask)
        await campaigns_served.close()
    assert first == again
    [reply], _ = await turns.history(db, rollout, 0)
    check_tree(rollout, [reply])
    assert reply.spans == (VersionSpan(0, 0, len(reply.completion_ids)),)
    assert first.num_completion_tokens == len(reply.completion_ids) > 0
