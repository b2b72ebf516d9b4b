"""A node that ends for good ends its functions, and costs a rollout one wait for its queue."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from cluster import cluster_of, two_nodes
from function_rollouts import processes_of
from players import GAME
from program_checks import FIX as EDITS
from program_checks import Hold, once
from program_cluster import ProgramCluster, calling, program_cluster
from scripted import SUBMIT, bash
from temporalio.api.enums.v1 import EventType

from cli.operations.machine.embedded_stack import StackInfo
from infra.db.programs import program_lives
from infra.db.runs import events
from mainspring.protocol.activities import CLOSE_SANDBOX, OPEN_SANDBOX
from mainspring.status import EventKind, StopReason
from tests.processes import runs
from workers import polling
from workflows import activity_calls

FIX = "sed -i 's/a - b/a + b/' calc.py"


async def test_the_next_sandbox_opens_while_the_close_waits(
    stack: StackInfo, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity_calls, "DEAD_NODE_TIMEOUT", timedelta(seconds=2))
    async with cluster_of(stack, await two_nodes(tmp_path_factory)) as cluster:
        lost: list[str] = []

        async def lose_its_node(sticky: str) -> None:
            if not lost and cluster.policy.asked:
                lost.append(sticky)
                await cluster.lose_node()

        replies = (bash(FIX), bash("grep + calc.py"), SUBMIT)
        cluster.policy.say = lambda rollout, turn: replies[turn]
        cluster.policy.hold = lose_its_node
        campaign, group, [rollout] = await cluster.make_rollouts()
        handle = await cluster.start(rollout, campaign, group)
        result = await handle.result()
        assert (result.stop_reason, result.reward) == (StopReason.SUBMITTED, 1.0)
        assert len(lost) == 1
        [rebuilt] = await events.newest(
            cluster.db, campaign, kinds=[EventKind.SANDBOX_REBUILT, EventKind.EPOCH_BEGUN]
        )
        assert (rebuilt.subject, rebuilt.data["num_commands"]) == (rollout, 1)
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


@pytest.fixture
async def two(
    stack: StackInfo, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ProgramCluster]:
    """Two nodes, of which one may end at once and is soon taken for dead."""
    monkeypatch.setattr(activity_calls, "DEAD_NODE_TIMEOUT", timedelta(seconds=5))
    monkeypatch.setattr(polling, "GRACE", timedelta(seconds=0))
    hosts = await two_nodes(tmp_path_factory)
    async with program_cluster(stack, hosts, tmp_path_factory.mktemp("model")) as cluster:
        yield cluster


async def test_a_node_that_ends_in_order_ends_its_functions(two: ProgramCluster) -> None:
    two.engine.say = GAME.say
    held = Hold(two.engine)
    play = await GAME.start(two)
    await held.reached.wait()
    called = processes_of(play.rollout)
    await two.workers.lose_node()
    assert len(called) == GAME.num_processes and not any(runs(each.pid) for each in called)
    held.let_go.set()
    assert (await play.result()).reward == GAME.reward
    # The sandbox of the node that ended is left to its next process.
    assert len(two.engine.asked) == len(set(two.engine.asked)) == 3
    lives = await program_lives.of_rollout(two.workers.db, play.rollout, 0)
    assert [life.returncode for life in lives] == [None, 0]


async def test_a_program_whose_stop_no_process_takes_on_is_run_again(
    two: ProgramCluster,
) -> None:
    """Its node drains when the step limit is reached: its tree may still change."""
    lost: list[str] = []

    async def drain() -> None:
        lost.append(await two.workers.lose_node())

    two.engine.say = lambda prompt, turn: EDITS if turn == 0 else calling(f"echo {turn}")
    two.engine.hold = once(drain, turn=1)
    _, result = await two.play(step_limit=2)
    assert len(lost) == 1
    assert (result.stop_reason, result.reward) == (StopReason.STEP_LIMIT, 1.0)
    assert result.num_turns == len(two.engine.asked) == len(set(two.engine.asked)) == 2
