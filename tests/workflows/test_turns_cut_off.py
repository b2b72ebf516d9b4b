"""An activity of several turns is cut off: no command runs twice, no stored reply is lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import pytest
from cluster import NODE, Cluster
from scripted import SUBMIT, bash
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import PauseActivityRequest, UnpauseActivityRequest
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.testing import ActivityEnvironment

from activities.playing import PlayingActivities
from activities.sandbox import SandboxActivities
from infra.db.cache import FactCache
from infra.db.rollouts import rollouts, turns
from infra.db.rollouts.call_cache import packed
from infra.sandbox.protocol import BackendUnavailable
from mainspring.ids import RolloutId, SandboxId
from mainspring.protocol.rollout import OpenInput, PlayInput
from mainspring.status import StopReason
from mainspring.tasks.sandbox_choice import BWRAP
from mainspring.trajectories.tally import Tally, TurnLimits
from tests.waiting import until

FIX = "sed -i 's/a - b/a + b/' calc.py"
TOGETHER = 5
NUM_MARKS = 4


def mark(rollout: str, turn: int) -> str:
    """Each turn leaves a line; the turn before the last prints them all."""
    if turn > NUM_MARKS:
        return SUBMIT
    return bash(f"cat ran; {FIX}" if turn == NUM_MARKS else f"echo turn{turn} >> ran")


def life(rollout: RolloutId, number: int, epoch: int = 0) -> SandboxId:
    return SandboxId(f"{rollout.replace('/', '.')}.e{epoch}.s{number}")


def asked(cluster: Cluster, rollout: RolloutId) -> list[str]:
    return [each for each in cluster.policy.asked if each.startswith(rollout)]


async def check_played_once(cluster: Cluster, rollout: RolloutId, epoch: int = 0) -> None:
    calls, ran = await turns.history(cluster.db, rollout, epoch)
    assert [call.number for call in calls] == list(range(NUM_MARKS + 2))
    assert [(each.call, each.index) for each in ran] == [(n, 0) for n in range(NUM_MARKS + 2)]
    assert ran[NUM_MARKS].output.decode().split() == [f"turn{n}" for n in range(NUM_MARKS)]


class Cut:
    """Holds the policy at the reply of one turn of a rollout until it is let go."""

    def __init__(self, cluster: Cluster, rollout: RolloutId, turn: int) -> None:
        self.reached = asyncio.Event()
        self.let_go = asyncio.Event()
        self._before = f"{rollout}.t{turn - 1}"
        self._cluster = cluster
        cluster.policy.hold = self

    async def __call__(self, rollout: str) -> None:
        if self._before in self._cluster.policy.asked and not self.let_go.is_set():
            self.reached.set()
            await self.let_go.wait()


@pytest.mark.parametrize("turn", [0, 2, 3, 5])
async def test_a_node_that_dies_after_a_command_was_stored(cluster, monkeypatch, turn) -> None:
    cluster.policy.say = mark
    campaign, group, [rollout] = await cluster.make_rollouts(turns_per_activity=TOGETHER)
    store, died = turns.put_execution, []

    async def store_and_die(db, ident, epoch, execution):
        done = await store(db, ident, epoch, execution)
        if ident == rollout and execution.call == turn and not died:
            died.append(turn)
            await cluster.held.release(life(rollout, 0))
            raise OSError("the node died")
        return done

    monkeypatch.setattr(turns, "put_execution", store_and_die)
    result = await (await cluster.start(rollout, campaign, group)).result()
    assert died == [turn]
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.SUBMITTED, 1.0, 6)
    await check_played_once(cluster, rollout)
    assert len(asked(cluster, rollout)) == 6


@pytest.mark.parametrize("turn", [0, 3])
async def test_an_attempt_that_dies_before_and_after_a_reply_is_stored(
    cluster, monkeypatch, turn
) -> None:
    cluster.policy.say = mark
    campaign, group, [rollout] = await cluster.make_rollouts(turns_per_activity=TOGETHER)
    store, died = turns.put_call, []

    async def die_around(db, ident, epoch, call):
        if ident == rollout and call.number == turn and len(died) < 2:
            died.append("before" if not died else "after")
            if died[-1] == "after":
                await store(db, ident, epoch, call)
            raise OSError("the process died")
        return await store(db, ident, epoch, call)

    monkeypatch.setattr(turns, "put_call", die_around)
    result = await (await cluster.start(rollout, campaign, group)).result()
    assert died == ["before", "after"]
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.SUBMITTED, 1.0, 6)
    await check_played_once(cluster, rollout)
    # Only the reply that was not stored was asked for a second time.
    again = [each for each in asked(cluster, rollout) if each.endswith(f".t{turn}")]
    assert (len(again), len(asked(cluster, rollout))) == (2, 7)


async def test_a_sandbox_that_is_lost_in_the_middle_is_rebuilt(cluster) -> None:
    cluster.policy.say = mark
    campaign, group, [rollout] = await cluster.make_rollouts(turns_per_activity=TOGETHER)
    cut = Cut(cluster, rollout, 3)
    handle = await cluster.start(rollout, campaign, group)
    await cut.reached.wait()
    backend = cluster.backends[BWRAP]
    assert not isinstance(backend, BackendUnavailable)
    await backend.remove(life(rollout, 0))
    cut.let_go.set()
    result = await handle.result()
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.SUBMITTED, 1.0, 6)
    await check_played_once(cluster, rollout)
    assert len(asked(cluster, rollout)) == 6
    row = await cluster.row(rollout)
    assert (row.epoch, "restore" in row.phase_s) == (0, True)


async def test_a_sandbox_that_is_lost_before_its_patch_is_collected(cluster, monkeypatch) -> None:
    cluster.policy.say = lambda rollout, turn: bash(f"echo turn{turn} >> ran; {FIX}; cat ran")
    campaign, group, [rollout] = await cluster.make_rollouts(
        turns_per_activity=TOGETHER, step_limit=3
    )
    get, lost = rollouts.get_patch, []

    async def lose(db, ident, epoch):
        if ident == rollout and not lost:
            lost.append(await cluster.held.release(life(rollout, 0)))
        return await get(db, ident, epoch)

    monkeypatch.setattr(rollouts, "get_patch", lose)
    result = await (await cluster.start(rollout, campaign, group)).result()
    assert lost == [True]
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.STEP_LIMIT, 1.0, 3)
    _, ran = await turns.history(cluster.db, rollout, 0)
    assert ran[2].output.decode().split() == ["turn0", "turn1", "turn2"]
    assert len(asked(cluster, rollout)) == 3


async def test_a_replay_that_diverges_starts_again(cluster) -> None:
    cluster.policy.say = lambda rollout, turn: bash("date +%N") if not turn else mark("", turn)
    campaign, group, [rollout] = await cluster.make_rollouts(turns_per_activity=TOGETHER)
    cut = Cut(cluster, rollout, 2)
    handle = await cluster.start(rollout, campaign, group)
    await cut.reached.wait()
    await cluster.held.release(life(rollout, 0))
    cut.let_go.set()
    result = await handle.result()
    assert (result.stop_reason, result.num_turns) == (StopReason.SUBMITTED, 6)
    assert (await cluster.row(rollout)).epoch == 1
    calls, _ = await turns.history(cluster.db, rollout, 1)
    assert len(calls) == 6


async def test_a_cancel_in_the_middle_of_a_command(cluster) -> None:
    cluster.policy.say = lambda rollout, turn: bash("sleep 60" if turn == 2 else "true")
    campaign, group, [rollout] = await cluster.make_rollouts(turns_per_activity=TOGETHER)
    handle = await cluster.start(rollout, campaign, group)
    await until(lambda: len(asked(cluster, rollout)) == 3)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    row = await cluster.row(rollout)
    assert (row.stop_reason, row.reward, row.num_turns) == (StopReason.CANCELLED, None, 3)
    assert not [s for s in await cluster.open_sandboxes() if rollout.replace("/", ".") in s]


async def test_a_pause_of_the_activity_in_the_middle(cluster) -> None:
    """By an operator, with Temporal's own command."""
    cluster.policy.say = mark
    campaign, group, [rollout] = await cluster.make_rollouts(turns_per_activity=TOGETHER)
    cut = Cut(cluster, rollout, 3)
    handle = await cluster.start(rollout, campaign, group)
    await cut.reached.wait()
    await _pause(cluster, handle)
    done = await turns.history(cluster.db, rollout, 0)
    await asyncio.sleep(1.0)
    assert await turns.history(cluster.db, rollout, 0) == done
    cut.let_go.set()
    await cluster.client.workflow_service.unpause_activity(
        UnpauseActivityRequest(
            namespace=cluster.client.namespace,
            execution=WorkflowExecution(workflow_id=handle.id),
            type="play_turns",
        )
    )
    result = await handle.result()
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.SUBMITTED, 1.0, 6)
    await check_played_once(cluster, rollout)


async def _pause(cluster: Cluster, handle: WorkflowHandle) -> None:
    """Returns when the attempt has ended."""
    await cluster.client.workflow_service.pause_activity(
        PauseActivityRequest(
            namespace=cluster.client.namespace,
            execution=WorkflowExecution(workflow_id=handle.id),
            type="play_turns",
        )
    )

    async def is_paused() -> bool:
        pending = (await handle.describe()).raw_description.pending_activities
        return [(each.paused, each.HasField("last_failure")) for each in pending] == [(True, True)]

    await until(is_paused)


@asynccontextmanager
async def opened(cluster: Cluster) -> AsyncIterator[tuple[PlayingActivities, PlayInput]]:
    """A rollout with a sandbox, and the activity without its workflow."""
    _, _, [rollout] = await cluster.make_rollouts(turns_per_activity=TOGETHER)
    await rollouts.claim(cluster.db, rollout, "r")
    known = FactCache(cluster.db)
    admission = cluster.nodes[NODE].admission
    sandboxes = SandboxActivities(cluster.db, known, NODE, cluster.held, admission)
    ref = await ActivityEnvironment().run(
        sandboxes.open_sandbox, OpenInput(rollout=rollout, epoch=0, life=0)
    )
    limits = TurnLimits(step_limit=8, max_format_errors=2, rollout_timeout_s=60.0)
    yield (
        PlayingActivities(known, NODE, cluster.held, cluster.replies, sandboxes),
        PlayInput(
            rollout=rollout,
            epoch=0,
            sandbox=ref.sandbox,
            tally=Tally(limits=limits),
            num_turns=TOGETHER,
            min_policy_version=0,
            request_timeout_s=60.0,
            command_timeout_s=60.0,
        ),
    )
    await cluster.held.close(ref.sandbox)


def environment(attempt_s: float = 600.0) -> ActivityEnvironment:
    made = ActivityEnvironment()
    made.info = replace(made.info, start_to_close_timeout=timedelta(seconds=attempt_s))
    return made


async def test_two_attempts_at_once_play_the_turns_once(cluster) -> None:
    cluster.policy.say = lambda rollout, turn: (
        f"{mark(rollout, turn)}\nattempt {len(cluster.policy.asked)}"
    )
    async with opened(cluster) as (playing, ask):
        first, second = await asyncio.gather(
            *(environment().run(playing.play_turns, ask) for _ in range(2))
        )
        assert first.tally == second.tally and first.tally.num_turns == TOGETHER
        calls, ran = await turns.history(cluster.db, ask.rollout, 0)
        assert [call.number for call in calls] == list(range(TOGETHER))
        assert ran[NUM_MARKS].output.decode().split() == [f"turn{n}" for n in range(NUM_MARKS)]
        # What is known of the rollout is what stands.
        past = await cluster.replies.calls.played(ask.rollout, 0)
        assert (past.calls, past.executions) == ([packed(call) for call in calls], ran)


async def test_a_worker_that_is_drained_ends_the_activity_at_the_next_step(cluster) -> None:
    cluster.policy.say = mark
    async with opened(cluster) as (playing, ask):
        cut = Cut(cluster, ask.rollout, 2)
        drained = environment()
        attempt = asyncio.ensure_future(drained.run(playing.play_turns, ask))
        await cut.reached.wait()
        drained.worker_shutdown()
        cut.let_go.set()
        result = await attempt
        assert (result.tally.num_turns, result.tally.stop, result.retry_s) == (2, None, None)
        calls, ran = await turns.history(cluster.db, ask.rollout, 0)
        assert (len(calls), len(ran)) == (3, 2)  # the reply that was under way is stored
        rest = ask.model_copy(update={"tally": result.tally})
        result = await environment().run(playing.play_turns, rest)
        assert (result.tally.num_turns, result.tally.stop) == (6, StopReason.SUBMITTED)
        await check_played_once(cluster, ask.rollout)
        assert len(asked(cluster, ask.rollout)) == 6


async def test_a_turn_that_may_outlast_the_attempt_is_left_to_the_next(cluster) -> None:
    """A reply may ask for many commands; an attempt has time for one a turn."""
    cluster.policy.say = mark
    async with opened(cluster) as (playing, ask):
        tallies = [ask.tally]
        while tallies[-1].stop is None:
            asking = ask.model_copy(update={"tally": tallies[-1]})
            result = await environment(attempt_s=1.0).run(playing.play_turns, asking)
            tallies.append(result.tally)
            assert len(tallies) < 20
        # A step an attempt: a reply, or a command.
        assert [tally.num_turns for tally in tallies[::2]] == [0, 1, 2, 3, 4, 5, 6]
        await check_played_once(cluster, ask.rollout)
        assert len(asked(cluster, ask.rollout)) == 6
