"""A node gets ready for what its campaigns need next, and rollouts take what is ready."""

import pytest
from cluster import Cluster

from infra.db.cache import FactCache
from infra.db.plans.forecast import upcoming
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.sandbox.pool import WarmPool
from mainspring.config.campaign import CampaignConfig
from mainspring.config.settings import Settings
from mainspring.config.tasks import TasksConfig
from mainspring.ids import CampaignId, NodeId, TaskId
from mainspring.status import CampaignStatus
from mainspring.tasks.sandbox_choice import BWRAP
from mainspring.tasks.swe_task import SweTask
from node.capacity import Admission
from node.prewarm import Readiness

NODE = NodeId("ready-node")


async def a_running_campaign(cluster: Cluster, name: str, num_tasks: int) -> CampaignConfig:
    """Its tasks differ in their only file; no group has begun."""
    config = CampaignConfig.model_validate(
        {
            "name": name,
            "tasks": TasksConfig(source=name).model_dump(),
            "policy": {"model": "scripted"},
            "trainer": {"num_steps": 1, "groups_per_step": 2, "group_size": 2},
        }
    )
    await tasks.put_tasks(
        cluster.db,
        [
            SweTask(
                id=TaskId(f"{name}-{n}"),
                source=name,
                split="train",
                issue="-",
                files={"n.txt": str(n)},
                test_command="true",
            )
            for n in range(num_tasks)
        ],
    )
    await campaigns.create(cluster.db, config)
    await campaigns.set_status(cluster.db, CampaignId(name), CampaignStatus.RUNNING)
    return config


@pytest.fixture(autouse=True)
async def no_other_campaign_runs(cluster):
    """What tests before these left in the store would be got ready, too."""
    for record in await campaigns.list_all(cluster.db):
        if record.status not in campaigns.ENDS:
            await campaigns.set_status(cluster.db, record.id, CampaignStatus.CANCELLED)


@pytest.fixture
def pool(tmp_path):
    return WarmPool(BwrapBackend(tmp_path), size=3)


def readiness(cluster: Cluster, pool: WarmPool, capacity: int = 8) -> Readiness:
    admission = Admission(NODE, capacity, lambda: 0, Settings(home="/tmp"))
    pools = {BWRAP: pool}
    return Readiness(cluster.db, FactCache(cluster.db), admission, pools, None, 0)


async def test_the_next_groups_are_ready_before_they_start(cluster, pool):
    config = await a_running_campaign(cluster, "ready-a", num_tasks=5)
    coming = await upcoming(cluster.db, NODE, limit=100)
    mine = [it.task for it in coming if it.campaign == "ready-a"]
    # Two groups of two, in the order the seed gives, and none after the campaign's last.
    assert len(mine) == 4 and mine[0] == mine[1] != mine[2] == mine[3]
    await readiness(cluster, pool).look()
    assert pool.num_ready == 3
    await campaigns.set_status(cluster.db, CampaignId(config.name), CampaignStatus.CANCELLED)
    await readiness(cluster, pool).look()
    assert pool.num_ready == 0


async def test_a_node_that_takes_nothing_keeps_nothing_ready(cluster, pool):
    await a_running_campaign(cluster, "ready-b", num_tasks=3)
    await readiness(cluster, pool).look()
    assert pool.num_ready == 3
    await readiness(cluster, pool, capacity=0).look()
    assert pool.num_ready == 0
    await campaigns.set_status(cluster.db, CampaignId("ready-b"), CampaignStatus.CANCELLED)
