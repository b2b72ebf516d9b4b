"""What a killed or lost function leaves: its game, its commands, and what its attempt stored."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from function_rollouts import EXAMPLE, begin, function, game_service, games, play, processes_of
from players import COUNTED
from program_checks import Hold, check_answered_once, interrupt, once, sandboxes_of
from program_cluster import ProgramCluster
from temporalio.client import WorkflowFailureError
from test_function_rollout import walks

from activities.programs.function_lives import FunctionLives
from infra.db.nodes import sandboxes
from infra.db.programs import program_lives
from mainspring.environments.protocol import WorldLost
from mainspring.status import StopReason
from tests.waiting import until
from workflows.program import MAX_KILLED


@pytest.fixture(autouse=True)
def example_importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield


async def test_games_of_a_function_that_is_killed_are_closed(programs: ProgramCluster) -> None:
    programs.engine.say = walks
    async with game_service() as service:
        agent = function("player:solve", service=service)
        campaign, group, rollout = await begin(programs, agent)
        open_then: list[list[str]] = []

        async def kill_it() -> None:
            open_then.append(await games(service))
            for each in processes_of(rollout):
                each.kill()

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
        held = Hold(programs.engine)
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


@pytest.mark.parametrize(
    ("owner", "name", "error", "codes", "num_leases"),
    [
        # Its node is lost once its result is stored: the next life finds it, and calls nothing.
        (program_lives, "end", WorldLost("its node died"), [None], 2),
        # The next attempt tells of the end.
        (FunctionLives, "_told", OSError("the machine hiccups"), [0], 1),
        # After a life was begun: no other attempt calls the function in it.
        (FunctionLives, "_lived", OSError("the machine hiccups"), [None, 0], 2),
    ],
    ids=["stored", "ended", "begun"],
)
async def test_it_is_called_once_where_an_attempt_fails(
    programs: ProgramCluster,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    owner: ModuleType | type,
    name: str,
    error: Exception,
    codes: list[int | None],
    num_leases: int,
) -> None:
    async def fail() -> None:
        failed.append(name)
        raise error

    failed: list[str] = []
    interrupt(monkeypatch, owner, name, fail)
    programs.engine.say = lambda prompt, turn: COUNTED[turn]
    noted = tmp_path / "noted"
    rollout, result = await play(programs, function("count", noted=str(noted)))
    assert failed == [name] and len(noted.read_text().splitlines()) == 1
    assert (result.stop_reason, result.reward) == (StopReason.EXITED, 3.0)
    program = await check_answered_once(programs, rollout, num_calls=3, num_lives=len(codes))
    assert [life.returncode for life in program.lives] == codes
    leases = await sandboxes.rollout_leases(programs.workers.db, rollout)
    assert len(leases) == num_leases
