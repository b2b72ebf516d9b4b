"""A node's process is killed while its activities play several turns each.

The node is a real `mainspring worker sandbox`, started again as systemd would, and asks an endpoint
over HTTP itself. One rollout waits for its first reply, one for a later reply, one runs a command.
"""

import asyncio
import re
import threading
from collections import Counter
from pathlib import Path

import pytest
from cluster import Cluster, bwrap_or_skip, cluster_of
from scripted import SUBMIT, bash
from test_fleet_survives import NodeProcess, running

from cli.operations.machine.embedded_stack import StackInfo
from infra.db.rollouts import turns
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.rollout import RolloutConfig
from mainspring.ids import RolloutId, TaskId
from mainspring.status import PolicyApi, StopReason
from mainspring.tasks.swe_task import SweTask
from tests.chat_endpoint import Messages, chat_endpoint
from tests.waiting import until

KEY = "sk-of-the-node"
FIRST, LATER, RUNS = 0, 1, 2
"""What a rollout does when its node is killed; the number of its task."""
CUT_TURN = 2
NUM_MARKS = 4
FIX = "sed -i 's/a - b/a + b/' calc.py"


class Script:
    """The endpoint's replies; two rollouts wait for one until their node is dead."""

    def __init__(self) -> None:
        self.killed = threading.Event()
        self.asked = Counter[tuple[int, int]]()

    def __call__(self, messages: Messages) -> str:
        found = re.search(r"task number (\d)", messages[1]["content"])
        assert found is not None
        number = int(found[1])
        turn = sum(message["role"] == "assistant" for message in messages)
        self.asked[number, turn] += 1
        if (number, turn) in ((FIRST, 0), (LATER, CUT_TURN)):
            self.killed.wait(60)
        if turn > NUM_MARKS:
            return SUBMIT
        if turn == NUM_MARKS:
            return bash(f"{FIX}; cat ran")
        slow = "; sleep 2" if (number, turn) == (RUNS, CUT_TURN) else ""
        return bash(f"echo turn{turn} >> ran{slow}")


async def make(cluster: Cluster, number: int, url: str):
    config = CampaignConfig(
        name=f"together-{number}",
        agent=AgentConfig(step_limit=8),
        rollout=RolloutConfig(turns_per_activity=5),
        policy=PolicyConfig(api=PolicyApi.OPENAI, model="m1", engines=(url,)),
    )
    task = SweTask(
        id=TaskId(config.name),
        source="tests",
        split="train",
        issue=f"task number {number}: add subtracts",
        files={"calc.py": "def add(a, b):\n    return a - b\n"},
        tests={"hidden_test.py": "from calc import add\nassert add(2, 3) == 5\n"},
        test_command="python3 hidden_test.py",
    )
    campaign, group, [rollout] = await cluster.store(config, task)
    return rollout, await cluster.start(rollout, campaign, group)


@pytest.mark.chaos
@pytest.mark.long
async def test_a_node_is_killed_before_within_and_after_turns(
    stack: StackInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bwrap_or_skip(tmp_path / "probe")
    monkeypatch.setenv("MAINSPRING_POLICY_API_KEY", KEY)
    node = NodeProcess("together", tmp_path / "node", stack, f"unix://{tmp_path}/none")
    node.home.mkdir()
    script = Script()
    async with cluster_of(stack, {}) as cluster:
        with chat_endpoint() as endpoint:
            endpoint.reply = script
            async with running([node]):
                made = [await make(cluster, number, endpoint.url) for number in range(3)]

                async def all_are_there() -> bool:
                    calls, _ = await turns.history(cluster.db, made[RUNS][0], 0)
                    waiting = script.asked[FIRST, 0] and script.asked[LATER, CUT_TURN]
                    return bool(waiting) and len(calls) == CUT_TURN + 1

                await until(all_are_there)
                await asyncio.sleep(0.5)
                assert node.kill()
                script.killed.set()
                results = [await handle.result() for _, handle in made]
        for rollout, result in zip((each for each, _ in made), results, strict=True):
            assert (result.stop_reason, result.reward) == (StopReason.SUBMITTED, 1.0)
            await check_rows(cluster, rollout)
    assert set(endpoint.keys) == {f"Bearer {KEY}"}
    # A reply that was given is asked for once; one that its process did not live to read, again.
    twice = {asked for asked, times in script.asked.items() if times > 1}
    assert twice <= {(FIRST, 0), (LATER, CUT_TURN)}
    assert script.asked.total() <= 3 * (NUM_MARKS + 2) + 2


async def check_rows(cluster: Cluster, rollout: RolloutId) -> None:
    calls, ran = await turns.history(cluster.db, rollout, 0)
    assert [call.number for call in calls] == list(range(NUM_MARKS + 2))
    assert [(each.call, each.index) for each in ran] == [(n, 0) for n in range(NUM_MARKS + 2)]
    assert ran[NUM_MARKS].output.decode().split() == [f"turn{n}" for n in range(NUM_MARKS)]
