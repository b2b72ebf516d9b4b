"""A node that stops in order leaves nothing open, neither on the machine nor in the store."""

from scripted import bash

from infra.db.nodes import nodes, sandboxes
from mainspring.status import NodeStatus, SandboxStatus
from tests.waiting import until


async def test_what_a_stopping_node_releases_is_closed_in_the_store(cluster) -> None:
    cluster.policy.say = lambda rollout, turn: bash("sleep 60")
    campaign, group, [rollout] = await cluster.make_rollouts()
    handle = await cluster.start(rollout, campaign, group)

    async def is_open() -> bool:
        return any(rollout.replace("/", ".") in s for s in cluster.held.ids())

    await until(is_open)
    # Its workflow cannot close it, and must not open another one.
    await handle.terminate()
    await cluster.held.release_all()
    [lease] = await sandboxes.rollout_leases(cluster.db, rollout)
    assert lease.status is SandboxStatus.CLOSED
    assert not [s for s in await cluster.open_sandboxes() if rollout.replace("/", ".") in s]
    [record] = [n for n in await nodes.list_nodes(cluster.db) if n.said.id in cluster.nodes]
    assert (record.num_open, record.status) == (0, NodeStatus.UP)
