"""A node's process ends under a function: in order, or killed. Apart from the tests of a shared
cluster, whose workers would take part."""

import os
from datetime import timedelta
from pathlib import Path

import pytest
from cluster import Host, bwrap_or_skip
from function_rollouts import begin, function, processes_of
from node_processes import without_node
from program_checks import EDIT, Held, check_answered_once, until_asked_in
from program_cluster import program_cluster

from cli.operations.machine.embedded_stack import StackInfo
from infra.db.nodes import nodes
from infra.db.programs import program_lives
from mainspring.ids import NodeId
from mainspring.status import StopReason, Verdict
from tests.processes import runs
from tests.waiting import until
from workers import polling
from workflows import activity_calls

COUNTED = ("1", "2", "3")


async def test_a_node_that_ends_in_order_ends_its_functions(
    stack: StackInfo, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity_calls, "DEAD_NODE_TIMEOUT", timedelta(seconds=5))
    monkeypatch.setattr(polling, "GRACE", timedelta(seconds=0))
    hosts = {
        NodeId(name): Host(await bwrap_or_skip(tmp_path_factory.mktemp(name)), capacity=1)
        for name in ("function-a", "function-b")
    }
    async with program_cluster(stack, hosts, tmp_path_factory.mktemp("model")) as cluster:
        cluster.engine.say = lambda prompt, turn: COUNTED[turn]
        cluster.engine.hold = held = Held(1)
        campaign, group, rollout = await begin(cluster, function("count"))
        handle = await cluster.workers.start(rollout, campaign, group)
        await held.reached.wait()
        [called] = processes_of(rollout)
        [holder] = [name for name, node in cluster.workers.nodes.items() if node.held.ids()]
        await nodes.set_draining(cluster.workers.db, holder, True)
        node = cluster.workers.nodes[holder]
        await until(lambda: node.admission.refusal() is not None)
        await node.own.shutdown()
        assert not runs(called.pid)
        held.let_go.set()
        assert (await handle.result()).reward == 3.0
        # The sandbox of the node that ended is left to its next process.
        assert len(cluster.engine.asked) == len(set(cluster.engine.asked)) == 3
        lives = await program_lives.of_rollout(cluster.workers.db, rollout, 0)
        assert [life.returncode for life in lives] == [None, 0]


@pytest.mark.parametrize(("name", "reward"), [("count", 3.0), ("fix", 1.0)])
async def test_the_next_process_of_a_node_begins_another_life(
    stack: StackInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reward: float
) -> None:
    """Of a game and of a repository, whose sandbox lives on and is not used again."""
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(root), str(Path(__file__).parent))))
    home = tmp_path / "node"
    async with without_node(stack, home) as (cluster, node):
        said = {"count": COUNTED, "fix": ("$ cat calc.py", f"$ {EDIT}", "done")}[name]
        cluster.engine.say = lambda prompt, turn: said[turn]
        cluster.engine.hold = held = Held(1)
        if name == "count":
            campaign, group, rollout = await begin(cluster, function(name))
        else:
            campaign, group, [rollout] = await cluster.workers.make_rollouts(program=function(name))
        async with node() as process:
            handle = await cluster.workers.start(rollout, campaign, group)
            await held.reached.wait()
            [called] = processes_of(rollout)
            process.kill()
            await process.wait()
            await until(lambda: not processes_of(rollout))
        async with node():
            await until_asked_in(cluster.workers, rollout, 1, life=1)
            assert called.pid not in {each.pid for each in processes_of(rollout)}
            held.let_go.set()
            result = await handle.result()
        assert (result.stop_reason, result.num_turns) == (StopReason.EXITED, 3)
        assert (result.reward, result.verdict) == (
            3.0 if name == "count" else 1.0,
            Verdict.RESOLVED,
        )
        program = await check_answered_once(cluster, rollout, num_calls=3, num_lives=2)
        assert program.num_replayed >= 1
        assert processes_of(rollout) == [] == list((home / "functions").glob("*/*"))
