"""Limits end an agent of Harbor with what its client runs, and do not end what may take longer."""

import pytest
from function_rollouts import processes_of
from harbor_rollouts import ROOMY, agent, fixes_with
from players import CLIENTS, HARBOR, Player
from program_checks import EDIT, check_answered_once, sandbox_of
from program_cluster import ProgramCluster
from victims import processes_in

from mainspring.protocol.rollout import STRAGGLER_SIGNAL
from mainspring.status import StopReason
from tests.waiting import until

SPOILING = "sleep 600; echo broken > calc.py"


@pytest.fixture(autouse=True)
def harbor_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    HARBOR.prepare(monkeypatch)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda each: each.name)
async def test_a_client_that_works_for_long_is_ended_with_its_commands(
    programs: ProgramCluster, monkeypatch: pytest.MonkeyPatch, client: Player
) -> None:
    client.prepare(monkeypatch)
    programs.engine.say = fixes_with(client.name, EDIT, SPOILING)
    play = await client.start(programs)
    await until(lambda: len(programs.engine.asked) == 2)

    async def sleeps() -> bool:
        running = await processes_in(programs, sandbox_of(play.rollout, 0))
        return any(words == ["sleep", "600"] for _, words in running)

    await until(sleeps)
    await play.handle.signal(STRAGGLER_SIGNAL, 1.0)
    result = await play.result()
    assert (result.stop_reason, result.reward) == (StopReason.STRAGGLER, 1.0)
    await check_answered_once(programs, play.rollout, num_calls=2, num_lives=1)
    assert processes_of(play.rollout) == []


IN_IMAGE = agent("acting_harbor:InImage", in_image=True)


async def test_a_client_may_take_longer_than_a_command(programs: ProgramCluster) -> None:
    programs.engine.say = lambda prompt, turn: f"sleep 4; {EDIT}"
    _, result = await programs.play({**IN_IMAGE, "command_timeout_s": 1.0}, sandbox=ROOMY)
    assert (result.stop_reason, result.reward) == (StopReason.EXITED, 1.0)


async def test_a_client_is_ended_at_the_rollouts_time_limit(programs: ProgramCluster) -> None:
    programs.engine.say = lambda prompt, turn: f"{EDIT}; {SPOILING}"
    _, result = await programs.play(IN_IMAGE, rollout_timeout_s=20.0, sandbox=ROOMY)
    assert (result.stop_reason, result.reward) == (StopReason.WALL_TIME, 1.0)


async def test_a_command_of_one_beside_the_node_is_bounded(programs: ProgramCluster) -> None:
    said = ("```bash\nsleep 600\n```", f"```bash\n{EDIT}\n```", "done")
    programs.engine.say = lambda prompt, turn: said[turn]
    program = {**agent("solver:Solver"), "command_timeout_s": 2.0}
    _, result = await programs.play(program, sandbox=ROOMY)
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.EXITED, 1.0, 3)
    last = programs.engine._tokenizer.decode(list(programs.engine.asked[-1]))
    assert "exit code 124" in last
