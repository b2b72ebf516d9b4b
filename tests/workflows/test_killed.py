"""Kills of each process under each kind of player: the rows are those of an undisturbed rollout,
every token is trained once, and nothing of an earlier life is left."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from function_rollouts import processes_of
from players import (
    AGENT,
    CLIENTS,
    FUNCTION,
    GAME,
    HARBOR,
    IMPATIENT,
    LEAVING,
    PROGRAM,
    PYTHON_TOOL,
    REMOTE,
    SERVICE,
    SHORTENING,
    SUMMARISING,
    TOOLS,
    Play,
    Player,
)
from program_checks import Hold, check_answered_once, recorded, replays, sandboxes_of
from program_cluster import ProgramCluster
from temporalio.client import WorkflowFailureError
from victims import SCENES, Place

from cli.operations.machine.embedded_stack import StackInfo
from infra.db.programs import program_lives
from mainspring.protocol.rollout import RolloutResult
from mainspring.status import StopReason
from mainspring.trajectories.turns import Call, Execution
from tests.conftest import Standing
from tests.waiting import until

BESIDE_NODE = (FUNCTION, GAME, HARBOR)
IN_SANDBOX = (PROGRAM, FUNCTION, HARBOR, CLIENTS[0])
AGENTS = (AGENT, TOOLS, PYTHON_TOOL, SHORTENING, SUMMARISING)
KILLED: dict[str, tuple[Player, ...]] = {
    "process": (PROGRAM, *BESIDE_NODE, *CLIENTS, LEAVING),
    "client": CLIENTS,
    "sandbox": (*IN_SANDBOX, *AGENTS),
    "gateway": (PROGRAM, *BESIDE_NODE, IMPATIENT),
    "edge": (REMOTE,),
    "service": (SERVICE, PYTHON_TOOL),
    "node": (PROGRAM, *BESIDE_NODE, CLIENTS[2], REMOTE, *AGENTS, SERVICE),
    "node_with_a_reply": (PROGRAM,),
    "rollout_worker": (PROGRAM, *BESIDE_NODE, REMOTE, *AGENTS, SERVICE),
}
"""Victims, and those under whom each is killed. The others have no such victim."""
PAIRS = [
    pytest.param(victim, player, id=f"{victim}-{player.name}")
    for victim, players in KILLED.items()
    for player in players
]
NEXT_LIFE = {"process", "client", "sandbox"}
"""Victims whose loss ends a life of the player; of a node's loss each player tells."""

Rows = tuple[RolloutResult, tuple[list[Call], list[Execution]]]


@pytest.fixture
def place(
    standing: Standing, stack: StackInfo, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> Place:
    return Place(stack, standing, tmp_path_factory, tmp_path)


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Rows]:
    """Each is played when it is first compared with."""
    return {}


async def rows_of(cluster: ProgramCluster, play: Play) -> Rows:
    result = await play.result()
    return result.model_copy(update={"rollout": ""}), await recorded(cluster.workers, play.rollout)


@pytest.mark.parametrize(("victim", "player"), PAIRS)
async def test_what_is_killed_leaves_the_rows_of_an_undisturbed_rollout(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: dict[str, Rows],
    victim: str,
    player: Player,
) -> None:
    player.prepare(monkeypatch)
    async with SCENES[victim](place, player) as scene:
        cluster, engine = scene.cluster, scene.cluster.engine
        if player.name not in undisturbed:
            engine.forget()
            engine.say = player.say
            undisturbed[player.name] = await rows_of(cluster, await player.start(cluster))
        expected, calls = undisturbed[player.name]
        assert expected.stop_reason in (StopReason.EXITED, StopReason.SUBMITTED)
        assert expected.reward == player.reward and expected.num_turns in range(3, 5)
        engine.forget()
        engine.say = player.say
        hold = Hold(engine)
        play = await player.start(cluster)
        await hold.reached.wait()
        await scene.kill(play, hold)
        hold.let_go.set()
        result, found = await rows_of(cluster, play)
        assert result.stop_reason is expected.stop_reason and result.reward == player.reward
        if player.is_exact:
            assert (result, found) == (expected, calls)
        await check_lives(cluster, play, victim, player, result.num_turns)
        assert processes_of(play.rollout) == []
        await replays(cluster.workers, play.rollout)


async def check_lives(
    cluster: ProgramCluster, play: Play, victim: str, player: Player, num_calls: int
) -> None:
    if not player.asks_from:
        row, asked = await cluster.workers.row(play.rollout), cluster.engine.asked
        assert len(asked) == len(set(asked)) == num_calls and row.epoch == 0
        # A service's worlds and tools in Python end with their node; sandboxes outlive theirs.
        in_node = {SERVICE: ("service", "node"), PYTHON_TOOL: ("service", "node", "sandbox")}
        lost = in_node.get(player, ("sandbox",))
        assert ("restore" in row.phase_s) == (victim in lost)
        return
    loses_life = victim in NEXT_LIFE or (victim == "node" and player.asks_from == "node")
    program = await check_answered_once(
        cluster, play.rollout, num_calls=num_calls, num_lives=1 + loses_life
    )
    assert program.num_replayed == 2 * loses_life or (loses_life and not player.is_exact)
    codes = [life.returncode for life in program.lives]
    assert victim not in ("process", "client") or codes == player.codes
    assert victim != "sandbox" or codes == [None, 0]
    if loses_life and player.asks_from == "outside":
        lives = [(each.taken_by, each.ended_by) for each in program.lives]
        assert lives == [("first", "silent"), ("second", "patch")]


@pytest.fixture
async def held(place: Place, player: Player) -> AsyncIterator[tuple[ProgramCluster, Play, Hold]]:
    """A rollout whose second reply is held."""
    async with SCENES["process"](place, player) as scene:
        scene.cluster.engine.forget()
        scene.cluster.engine.say = player.say
        hold = Hold(scene.cluster.engine)
        play = await player.start(scene.cluster)
        await hold.reached.wait()
        assert len(processes_of(play.rollout)) == player.num_processes
        yield scene.cluster, play, hold


IN_TURN = pytest.mark.parametrize("player", [PROGRAM, FUNCTION, GAME], ids=lambda each: each.name)


@IN_TURN
async def test_a_cancel_ends_it_with_all_that_it_started(
    player: Player, held: tuple[ProgramCluster, Play, Hold]
) -> None:
    cluster, play, hold = held
    await play.handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await play.handle.result()
    hold.let_go.set()
    row = await cluster.workers.row(play.rollout)
    assert (row.stop_reason, row.reward) == (StopReason.CANCELLED, None)
    assert await sandboxes_of(cluster.workers, play.rollout) == []
    assert processes_of(play.rollout) == []
    await replays(cluster.workers, play.rollout)


@IN_TURN
async def test_one_that_is_terminated_begins_again_with_another_key(
    player: Player, keys: list[str], held: tuple[ProgramCluster, Play, Hold]
) -> None:
    cluster, play, hold = held
    await play.handle.terminate()
    db = cluster.workers.db
    assert await program_lives.holder(db, keys[0]) is not None
    if player.num_processes:
        await until(lambda: not processes_of(play.rollout))
    hold.let_go.set()
    handle = await cluster.workers.start(play.rollout, play.campaign, play.group)
    result = await handle.result()
    assert (result.stop_reason, result.reward) == (StopReason.EXITED, player.reward)
    assert result.num_turns == 3
    assert (await cluster.workers.row(play.rollout)).epoch == 1
    assert [await program_lives.holder(db, key) for key in keys] == [None] * len(keys)
    calls, _ = await recorded(cluster.workers, play.rollout)
    assert [call.parent for call in calls] == [None, 0, 1]
    await cluster.workers.reaper.reap()
    assert await sandboxes_of(cluster.workers, play.rollout) == []


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch, player: Player) -> list[str]:
    """Of the lives that begin."""
    made: list[str] = []
    name = "begin_once" if player.num_processes else "begin"
    begin = getattr(program_lives, name)

    async def noted(*about: Any) -> Any:
        made.append(await begin(*about))
        return made[-1]

    monkeypatch.setattr(program_lives, name, noted)
    return made
