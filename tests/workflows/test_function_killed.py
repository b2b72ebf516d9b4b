"""Whatever is killed under a function, the rollout continues: answered from the store, called again
from its start, and nothing of an earlier life is left."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from function_rollouts import (
    EXAMPLE,
    begin,
    function,
    game_service,
    games,
    play,
    processes_of,
)
from program_checks import (
    Held,
    check_answered_once,
    kill_sandbox,
    once,
    replays,
    sandbox_of,
    sandboxes_of,
)
from program_cluster import ProgramCluster
from temporalio.client import WorkflowFailureError
from test_function_rollout import walks

from activities.programs.function_lives import FunctionLives
from infra.db.nodes import sandboxes
from infra.db.programs import program_lives
from mainspring.environments.protocol import WorldLost
from mainspring.ids import RolloutId
from mainspring.status import StopReason
from tests.waiting import until
from workflows.program import MAX_KILLED

COUNTED = ("1", "2", "3")


@pytest.fixture(autouse=True)
def example_importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield


def times_called(noted: Path) -> int:
    return len(noted.read_text().splitlines())


async def kill(rollout: RolloutId) -> None:
    for each in processes_of(rollout):
        each.send_signal(signal.SIGKILL)


async def test_one_that_is_killed_is_called_again_and_answered_from_the_store(
    programs: ProgramCluster,
) -> None:
    programs.engine.say = lambda prompt, turn: COUNTED[turn]
    campaign, group, rollout = await begin(programs, function("count"))
    programs.engine.hold = once(lambda: kill(rollout), turn=1)
    result = await (await programs.workers.start(rollout, campaign, group)).result()
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.EXITED, 3.0, 3)
    program = await check_answered_once(programs, rollout, num_calls=3, num_lives=2)
    assert [life.returncode for life in program.lives] == [-9, 0]
    assert program.num_replayed == 2
    await replays(programs.workers, rollout)


async def test_games_of_a_function_that_is_killed_are_closed(programs: ProgramCluster) -> None:
    programs.engine.say = walks
    async with game_service() as service:
        agent = function("player:solve", service=service)
        campaign, group, rollout = await begin(programs, agent)
        open_then: list[list[str]] = []

        async def kill_it() -> None:
            open_then.append(await games(service))
            await kill(rollout)

        programs.engine.hold = once(kill_it, turn=1)
        result = await (await programs.workers.start(rollout, campaign, group)).result()
        assert open_then == [[f"{rollout}.0"]]
        assert await games(service) == []
    assert result.reward == 1.0
    await check_answered_once(programs, rollout, num_calls=result.num_turns, num_lives=2)


async def test_a_service_forgets_a_game_that_is_not_played(programs: ProgramCluster) -> None:
    """Its last life was killed: the next request after `--idle-s` finds no game."""
    programs.engine.say = walks
    async with game_service(idle_s=1.0) as service:
        agent = function("player:solve", service=service)
        campaign, group, rollout = await begin(programs, agent)
        programs.engine.hold = held = Held(1)
        handle = await programs.workers.start(rollout, campaign, group)
        await held.reached.wait()
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        held.let_go.set()

        async def are_forgotten() -> bool:
            return await games(service) == []

        await until(are_forgotten)


async def test_one_that_is_killed_in_each_life_gets_no_reward(programs: ProgramCluster) -> None:
    programs.engine.say = lambda prompt, turn: "1"
    rollout, result = await play(programs, function("dies"))
    assert (result.stop_reason, result.reward) == (StopReason.INFRA_FAULT, None)
    fault = (await programs.workers.row(rollout)).fault or ""
    assert "was ended by signal 9" in fault and "killed in each of its lives" in fault
    lives = await program_lives.of_rollout(programs.workers.db, rollout, 0)
    assert [life.returncode for life in lives] == [-9] * (MAX_KILLED + 1)
    assert len(programs.engine.asked) == 1


async def test_a_sandbox_that_is_lost_is_followed_by_another_life(
    programs: ProgramCluster,
) -> None:
    said = ("$ cat calc.py", "$ sed -i 's/a - b/a + b/' calc.py", "done")
    programs.engine.say = lambda prompt, turn: said[turn]
    campaign, group, [rollout] = await programs.workers.make_rollouts(program=function("fix"))

    async def lose() -> None:
        await kill_sandbox(programs.workers, sandbox_of(rollout, 0))

    programs.engine.hold = once(lose, turn=1)
    result = await (await programs.workers.start(rollout, campaign, group)).result()
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.EXITED, 1.0, 3)
    program = await check_answered_once(programs, rollout, num_calls=3, num_lives=2)
    assert program.num_replayed == 2
    await replays(programs.workers, rollout)


async def test_commands_that_it_left_behind_do_not_change_the_tree(
    programs: ProgramCluster,
) -> None:
    programs.engine.say = lambda prompt, turn: "fix it"
    rollout, result = await programs.play(function("leaves_a_command"))
    assert (result.stop_reason, result.reward) == (StopReason.EXITED, 1.0)
    assert await sandboxes_of(programs.workers, rollout) == []


async def test_a_service_that_was_lost_is_followed_by_another_life(
    programs: ProgramCluster,
) -> None:
    programs.engine.say = lambda prompt, turn: "0.5"
    rollout, result = await play(programs, function("lost_once"))
    assert (result.stop_reason, result.reward) == (StopReason.EXITED, 0.5)
    await check_answered_once(programs, rollout, num_calls=1, num_lives=2)


async def test_what_it_returned_is_stored_before_its_node_is_lost(
    programs: ProgramCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The next life finds it, and calls nothing: the calls of the first one are trained."""
    programs.engine.say = lambda prompt, turn: COUNTED[turn]
    end, lost = program_lives.end, []

    async def lose(*about) -> None:
        if not lost:
            lost.append(about)
            raise WorldLost("its node died")
        await end(*about)

    monkeypatch.setattr(program_lives, "end", lose)
    noted = tmp_path / "noted"
    rollout, result = await play(programs, function("count", noted=str(noted)))
    assert len(lost) == 1 and times_called(noted) == 1
    assert (result.stop_reason, result.reward) == (StopReason.EXITED, 3.0)
    await check_answered_once(programs, rollout, num_calls=3, num_lives=1)
    assert len(await sandboxes.rollout_leases(programs.workers.db, rollout)) == 2


async def test_an_end_that_was_not_told_is_told_by_the_next_attempt(
    programs: ProgramCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    programs.engine.say = lambda prompt, turn: "done"
    told, failed = FunctionLives._told, []  # pyright: ignore[reportPrivateUsage]

    async def fail(*about):
        if not failed:
            failed.append(about)
            raise OSError("the machine hiccups")
        return await told(*about)

    monkeypatch.setattr(FunctionLives, "_told", fail)
    rollout, result = await programs.play(function("fix"))
    assert len(failed) == 1 and result.stop_reason is StopReason.EXITED
    await check_answered_once(programs, rollout, num_calls=1, num_lives=1)


async def test_a_life_without_an_end_is_not_taken_over(
    programs: ProgramCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The attempt fails after the life was begun: no other attempt calls the function in it."""
    programs.engine.say = lambda prompt, turn: COUNTED[turn]
    lived, failed = FunctionLives._lived, []  # pyright: ignore[reportPrivateUsage]

    async def fail(*about, **more):
        if not failed:
            failed.append(about)
            raise OSError("the machine hiccups")
        return await lived(*about, **more)

    monkeypatch.setattr(FunctionLives, "_lived", fail)
    noted = tmp_path / "noted"
    rollout, result = await play(programs, function("count", noted=str(noted)))
    assert (result.reward, times_called(noted)) == (3.0, 1)
    program = await check_answered_once(programs, rollout, num_calls=3, num_lives=2)
    assert [life.returncode for life in program.lives] == [None, 0]


async def test_a_cancel_ends_it_with_all_that_it_started(
    programs: ProgramCluster, tmp_path: Path
) -> None:
    programs.engine.say = lambda prompt, turn: "1"
    campaign, group, rollout = await begin(programs, function("never_ends"))
    handle = await programs.workers.start(rollout, campaign, group)
    await until(lambda: len(processes_of(rollout)) == 2)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    row = await programs.workers.row(rollout)
    assert (row.stop_reason, row.reward) == (StopReason.CANCELLED, None)
    assert processes_of(rollout) == []
    await replays(programs.workers, rollout)


async def test_a_workflow_that_is_terminated_leaves_no_function(programs: ProgramCluster) -> None:
    programs.engine.say = lambda prompt, turn: "1"
    campaign, group, rollout = await begin(programs, function("never_ends"))
    handle = await programs.workers.start(rollout, campaign, group)
    await until(lambda: len(processes_of(rollout)) == 2)
    await handle.terminate()
    await until(lambda: not processes_of(rollout))
