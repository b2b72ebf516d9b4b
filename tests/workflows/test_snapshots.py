"""Rollouts whose node dies go on from the newest snapshot of their sandbox, or without one."""

import pytest
from scripted import SUBMIT, bash

from infra.db.nodes import sandboxes
from infra.db.rollouts import snapshots, turns
from mainspring.config.sandbox import SandboxConfig
from mainspring.errors import DatabaseError
from mainspring.ids import RolloutId, SandboxId
from mainspring.status import StopReason
from workflows import sandbox_life

FIX = "sed -i 's/a - b/a + b/' calc.py"
EVERY_TWO = SandboxConfig(snapshot_every_turns=2)


@pytest.fixture
def die_after(cluster, monkeypatch):
    """Makes the node die with its sandboxes when it has stored the results of these turns."""
    store = turns.put_execution
    doomed: list[int] = []

    async def store_and_die(db, rollout, epoch, execution):
        done = await store(db, rollout, epoch, execution)
        if execution.call in doomed:
            doomed.remove(execution.call)
            for sandbox in cluster.held.ids():
                await cluster.held.release(SandboxId(sandbox))
            raise OSError("the node died")
        return done

    monkeypatch.setattr(turns, "put_execution", store_and_die)
    return doomed.extend


async def play(cluster, *commands: str) -> tuple[RolloutId, list[bytes]]:
    """What the commands printed in the life that counts."""
    replies = [*map(bash, commands), SUBMIT]
    cluster.policy.say = lambda rollout, turn: replies[turn]
    campaign, group, [rollout] = await cluster.make_rollouts(sandbox=EVERY_TWO)
    result = await (await cluster.start(rollout, campaign, group)).result()
    assert (result.stop_reason, result.reward) == (StopReason.SUBMITTED, 1.0)
    row = await cluster.row(rollout)
    # A command of `commands` that tells the time would have diverged in a replay.
    assert (row.epoch, "restore" in row.phase_s) == (0, True)
    assert await snapshots.newest(cluster.db, rollout, 0) is None
    _, done = await turns.history(cluster.db, rollout, 0)
    return rollout, [each.output for each in done]


async def test_only_what_came_after_the_snapshot_runs_again(cluster, die_after) -> None:
    die_after([2, 4])
    _, said = await play(
        cluster,
        "date +%N; echo 0 >> ran",
        "date +%N; echo 1 >> ran; date +%N > /tmp/stamp",
        "cat /tmp/stamp; echo 2 >> ran",
        "date +%N > ~/stamp; date +%N; echo 3 >> ran",
        "cat ~/stamp; cat /tmp/stamp; echo 4 >> ran",
        f"cat ran; {FIX}",
    )
    assert said[5] == b"0\n1\n2\n3\n4\n"
    assert said[2] in said[4]


async def test_a_node_that_dies_before_the_snapshot_costs_a_replay(cluster, die_after) -> None:
    die_after([1])
    _, said = await play(cluster, "echo 0 >> ran", "echo 1 >> ran", f"cat ran; {FIX}")
    assert said[2] == b"0\n1\n"


async def test_a_snapshot_that_is_of_no_use_costs_a_sandbox(
    cluster, die_after, monkeypatch
) -> None:
    put = snapshots.put

    async def put_half(db, rollout, epoch, num_turns, data):
        await put(db, rollout, epoch, num_turns, data[: len(data) // 2])

    monkeypatch.setattr(snapshots, "put", put_half)
    die_after([2])
    rollout, said = await play(cluster, *(f"echo {n} >> ran" for n in range(3)), f"cat ran; {FIX}")
    assert said[3] == b"0\n1\n2\n"
    assert len(await sandboxes.rollout_leases(cluster.db, rollout)) == 4  # the grader's included


async def test_a_snapshot_that_cannot_be_stored_costs_nothing(
    cluster, die_after, monkeypatch
) -> None:
    async def refuse(db, rollout, epoch, num_turns, data):
        raise DatabaseError("no room")

    monkeypatch.setattr(snapshots, "put", refuse)
    die_after([2])
    _, said = await play(cluster, *(f"echo {n} >> ran" for n in range(3)), f"cat ran; {FIX}")
    assert said[3] == b"0\n1\n2\n"


async def test_nodes_may_die_often_while_each_one_brings_a_turn(
    cluster, die_after, monkeypatch
) -> None:
    monkeypatch.setattr(sandbox_life, "MAX_LIVES", 2)
    die_after(range(4))
    _, said = await play(cluster, *(f"echo {n} >> ran" for n in range(4)), f"cat ran; {FIX}")
    assert said[4] == b"0\n1\n2\n3\n"
