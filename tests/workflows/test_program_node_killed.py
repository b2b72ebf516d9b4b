"""A node's process ends under a program: killed and replaced, or gone as the program is stopped."""

import signal
from datetime import timedelta
from pathlib import Path

import pytest
from cluster import Host, bwrap_or_skip
from node_processes import without_node
from program_checks import FIX, THREE, Held, check_answered_once, once
from program_cluster import (
    ProgramCluster,
    calling,
    own_program,
    program_cluster,
)
from sqlalchemy import select

from cli.operations.machine.embedded_stack import StackInfo
from gateway.durable import DurableAnswers
from infra.db.nodes import nodes
from infra.db.tables.program_rows import ModelRequestRow, ProgramLifeRow
from mainspring.ids import NodeId, RolloutId
from mainspring.status import StopReason
from tests.waiting import until
from workers import polling
from workflows import activity_calls

NODES = (NodeId("program-lost-a"), NodeId("program-lost-b"))


async def key_hashes(cluster: ProgramCluster, rollout: RolloutId) -> list[str]:
    statement = select(ProgramLifeRow.key_hash).where(ProgramLifeRow.rollout_id == rollout)
    async with cluster.workers.db.statement() as connection:
        return list(await connection.scalars(statement))


async def test_the_next_process_of_a_node_opens_the_models_port_again(
    stack: StackInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same sandbox, with another key; the program runs on, and its client asks again."""
    await bwrap_or_skip(tmp_path / "probe")
    told: list[int] = []
    tell = DurableAnswers._signal  # pyright: ignore[reportPrivateUsage]

    async def note(*about) -> None:
        await tell(*about)
        told.append(about[2])

    monkeypatch.setattr(DurableAnswers, "_signal", note)
    home = tmp_path / "node"
    async with without_node(stack, home) as (cluster, node):
        cluster.engine.say = lambda prompt, turn: THREE[turn]
        cluster.engine.hold = held = Held(1)
        campaign, group, [rollout] = await cluster.workers.make_rollouts(program=own_program())
        async with node() as process:
            handle = await cluster.workers.start(rollout, campaign, group)
            await held.reached.wait()
            process.kill()
            await process.wait()
        [first_key] = await key_hashes(cluster, rollout)
        async with node():
            await until(lambda: told.count(1) == 2)
            held.let_go.set()
            result = await handle.result()
            assert (result.stop_reason, result.reward) == (StopReason.EXITED, 1.0)
            [second_key] = await key_hashes(cluster, rollout)
            assert second_key != first_key
        await check_answered_once(cluster, rollout, num_calls=3, num_lives=1)


async def test_a_reply_that_a_dying_node_kept_is_told_again(
    stack: StackInfo, tmp_path: Path
) -> None:
    """The gateway sent it whole to the node, which is killed before it passes it on."""
    await bwrap_or_skip(tmp_path / "probe")
    home = tmp_path / "node"
    async with without_node(stack, home) as (cluster, node):
        cluster.engine.say = lambda prompt, turn: THREE[turn]
        cluster.engine.hold = held = Held(1)
        campaign, group, [rollout] = await cluster.workers.make_rollouts(program=own_program())

        async def is_sent() -> bool:
            row = ModelRequestRow
            statement = select(row.delivered_life).where(row.rollout_id == rollout, row.number == 1)
            async with cluster.workers.db.statement() as connection:
                return await connection.scalar(statement) is not None

        async with node() as process:
            handle = await cluster.workers.start(rollout, campaign, group)
            await held.reached.wait()
            process.send_signal(signal.SIGSTOP)
            held.let_go.set()
            await until(is_sent)
            process.kill()
            await process.wait()
        async with node():
            result = await handle.result()
        assert (result.stop_reason, result.reward) == (StopReason.EXITED, 1.0)
        await check_answered_once(cluster, rollout, num_calls=3, num_lives=1)


async def test_a_program_whose_stop_no_process_takes_on_is_run_again(
    stack: StackInfo, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node drains when the step limit is reached: its tree may still change."""
    monkeypatch.setattr(activity_calls, "DEAD_NODE_TIMEOUT", timedelta(seconds=5))
    monkeypatch.setattr(polling, "GRACE", timedelta(seconds=0))
    hosts = {
        name: Host(await bwrap_or_skip(tmp_path_factory.mktemp(name)), capacity=1) for name in NODES
    }
    async with program_cluster(stack, hosts, tmp_path_factory.mktemp("model")) as cluster:
        lost: list[NodeId] = []

        async def drain() -> None:
            [holder] = [name for name, node in cluster.workers.nodes.items() if node.held.ids()]
            lost.append(holder)
            await nodes.set_draining(cluster.workers.db, holder, True)
            node = cluster.workers.nodes[holder]
            await until(lambda: node.admission.refusal() is not None)
            await node.own.shutdown()

        cluster.engine.say = lambda prompt, turn: FIX if turn == 0 else calling(f"echo {turn}")
        cluster.engine.hold = once(drain, turn=1)
        _, result = await cluster.play(step_limit=2)
        assert len(lost) == 1
        assert (result.stop_reason, result.reward) == (StopReason.STEP_LIMIT, 1.0)
        assert result.num_turns == len(cluster.engine.asked) == len(set(cluster.engine.asked)) == 2
