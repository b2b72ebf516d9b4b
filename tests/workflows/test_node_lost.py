"""A node that dies for good costs a rollout one wait for its queue, not two."""

import asyncio
from datetime import timedelta

import pytest
from cluster import Host, bwrap_or_skip, cluster_of
from scripted import SUBMIT, bash
from temporalio.api.enums.v1 import EventType

from cli.operations.machine.embedded_stack import StackInfo
from infra.db.nodes import nodes
from mainspring.ids import NodeId
from mainspring.protocol.activities import CLOSE_SANDBOX, OPEN_SANDBOX
from mainspring.status import StopReason
from workflows import activity_calls

NODES = (NodeId("lost-a"), NodeId("lost-b"))
FIX = "sed -i 's/a - b/a + b/' calc.py"


async def test_the_next_sandbox_opens_while_the_close_waits(
    stack: StackInfo, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity_calls, "DEAD_NODE_TIMEOUT", timedelta(seconds=2))
    hosts = {
        name: Host(await bwrap_or_skip(tmp_path_factory.mktemp(name)), capacity=1) for name in NODES
    }
    async with cluster_of(stack, hosts) as cluster:
        lost: list[NodeId] = []

        async def lose_its_node(sticky: str) -> None:
            if lost or len(cluster.policy.asked) == 0:
                return
            [holder] = [name for name, node in cluster.nodes.items() if node.held.ids()]
            lost.append(holder)
            await nodes.set_draining(cluster.db, holder, True)  # it opens no more; then it dies
            while cluster.nodes[holder].admission.refusal() is None:
                await asyncio.sleep(0.05)
            await cluster.nodes[holder].own.shutdown()

        replies = (bash(FIX), bash("grep + calc.py"), SUBMIT)
        cluster.policy.say = lambda rollout, turn: replies[turn]
        cluster.policy.hold = lose_its_node
        campaign, group, [rollout] = await cluster.make_rollouts()
        handle = await cluster.start(rollout, campaign, group)
        result = await handle.result()
        assert (result.stop_reason, result.reward) == (StopReason.SUBMITTED, 1.0)
        assert len(lost) == 1
        history = await handle.fetch_history()
        scheduled = {
            event.event_id: event.activity_task_scheduled_event_attributes.activity_type.name
            for event in history.events
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
        }
        begun = list(scheduled.values())
        close = begun.index(CLOSE_SANDBOX.name)
        assert begun[close : close + 2] == [CLOSE_SANDBOX.name, OPEN_SANDBOX.name]
        # The close had not ended when the next sandbox was asked for.
        ids = list(scheduled)
        between = [e for e in history.events if ids[close] < e.event_id < ids[close + 1]]
        assert not between, [EventType.Name(e.event_type) for e in between]
