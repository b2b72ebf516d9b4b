"""What dies under an agent of Harbor: its process, its client, its sandbox; and what limits end."""

import contextlib
import uuid
from collections.abc import Iterator

import psutil
import pytest
from function_rollouts import processes_of
from harbor_rollouts import (
    BLOCKS,
    MAX_CONTEXT,
    ROOMY,
    SOLVER,
    agent,
    fixes_with,
    harbor_or_skip,
    installed,
)
from program_checks import EDIT, check_answered_once, kill_sandbox, replays, sandbox_of
from program_cluster import ProgramCluster

from infra.db.programs import program_lives
from infra.environments.swe import SweWorld
from infra.sandbox.session import LiveSandbox
from mainspring.config.agent import AgentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.ids import RolloutId, SandboxId, TaskId
from mainspring.protocol.rollout import STRAGGLER_SIGNAL
from mainspring.status import StopReason
from mainspring.tasks.swe_task import SweTask
from tests.waiting import until

CLIENTS = ("mini-swe-agent", "claude-code", "codex")
PROGRAMS = ("claude", "codex", "/python3.11")
"""Ends of what starts a client's process."""
SPOILING = "sleep 600; echo broken > calc.py"


@pytest.fixture(autouse=True)
def harbor_is_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    harbor_or_skip()
    monkeypatch.syspath_prepend(str(SOLVER))
    yield


async def kill_process(cluster: ProgramCluster, rollout: RolloutId) -> None:
    for each in processes_of(rollout):
        each.kill()


async def kill_client(cluster: ProgramCluster, rollout: RolloutId) -> None:
    """All that the sandbox's turn runs, from outside: Harbor's shell tells of the client's end."""
    running = await processes_in(cluster, sandbox_of(rollout, 0))
    found = [each for each, words in running if words[0].endswith(PROGRAMS)]
    assert found, running
    for each in found:
        each.kill()


async def lose_sandbox(cluster: ProgramCluster, rollout: RolloutId) -> None:
    await kill_sandbox(cluster.workers, sandbox_of(rollout, 0))


async def processes_in(
    cluster: ProgramCluster, sandbox: SandboxId
) -> list[tuple[psutil.Process, list[str]]]:
    """With the words of their command."""
    world = cluster.workers.held.get(sandbox)
    assert isinstance(world, SweWorld) and isinstance(world.sandbox, LiveSandbox)
    first = await world.sandbox._handle.find_pid()
    found = []
    for each in psutil.Process(first).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # also a zombie
            found.append((each, each.cmdline()))
    return [(each, words) for each, words in found if words]


@pytest.mark.parametrize(
    ("name", "kill", "code"),
    [
        ("solver:Solver", kill_process, -9),
        *((name, kill_process, -9) for name in CLIENTS),
        *((name, kill_client, -9) for name in CLIENTS),
        ("solver:Solver", lose_sandbox, None),
        ("mini-swe-agent", lose_sandbox, None),
    ],
)
async def test_what_is_killed_is_followed_by_another_life(
    programs: ProgramCluster, name: str, kill, code: int | None
) -> None:
    """Its requests are answered from the store, its commands run in another sandbox."""
    is_client = name in CLIENTS
    fields = installed(name) if is_client else agent(name)
    programs.engine.say = fixes_with(name) if is_client else lambda prompt, turn: BLOCKS[turn]
    campaign, group, [rollout] = await programs.workers.make_rollouts(
        program=fields, sandbox=ROOMY, max_context=MAX_CONTEXT, step_limit=12
    )
    asked: list[int] = []

    async def kill_at_the_third(turn: int) -> None:
        asked.append(turn)
        if len(asked) == 3:
            await kill(programs, rollout)

    programs.engine.hold = kill_at_the_third
    result = await (await programs.workers.start(rollout, campaign, group)).result()
    lives = await program_lives.of_rollout(programs.workers.db, rollout, 0)
    assert (result.stop_reason, result.reward) == (StopReason.EXITED, 1.0), lives
    program = await check_answered_once(programs, rollout, num_calls=result.num_turns, num_lives=2)
    assert [life.returncode for life in program.lives] == [code, 0]
    assert program.num_replayed >= 2 and result.num_turns <= 4
    assert processes_of(rollout) == []
    await replays(programs.workers, rollout)


@pytest.mark.parametrize("name", CLIENTS)
async def test_a_client_that_works_for_long_is_ended_with_its_commands(
    programs: ProgramCluster, name: str
) -> None:
    programs.engine.say = fixes_with(name, EDIT, SPOILING)
    campaign, group, [rollout] = await programs.workers.make_rollouts(
        program=installed(name), sandbox=ROOMY, max_context=MAX_CONTEXT
    )
    handle = await programs.workers.start(rollout, campaign, group)
    await until(lambda: len(programs.engine.asked) == 2)

    async def sleeps() -> bool:
        running = await processes_in(programs, sandbox_of(rollout, 0))
        return any(words == ["sleep", "600"] for _, words in running)

    await until(sleeps)
    await handle.signal(STRAGGLER_SIGNAL, 1.0)
    result = await handle.result()
    assert (result.stop_reason, result.reward) == (StopReason.STRAGGLER, 1.0)
    await check_answered_once(programs, rollout, num_calls=2, num_lives=1)
    assert processes_of(rollout) == []


async def play(cluster: ProgramCluster, fields: dict, **limits: float):
    name = f"h-{uuid.uuid4().hex[:8]}"
    config = CampaignConfig(
        name=name,
        agent=AgentConfig.model_validate({**fields, **limits}),
        policy=PolicyConfig(model="scripted", max_context=8192, max_new_tokens=1024),
        sandbox=ROOMY,
    )
    task = SweTask(
        id=TaskId(name),
        source="tests",
        split="train",
        issue="add subtracts",
        workdir="/testbed",
        files={"calc.py": "def add(a, b):\n    return a - b\n"},
        tests={"hidden_test.py": "from calc import add\nassert add(2, 3) == 5\n"},
        test_command="python3 hidden_test.py",
    )
    campaign, group, [rollout] = await cluster.workers.store(config, task)
    return await (await cluster.workers.start(rollout, campaign, group)).result()


async def test_a_client_may_take_longer_than_a_command(programs: ProgramCluster) -> None:
    programs.engine.say = lambda prompt, turn: f"sleep 4; {EDIT}"
    result = await play(
        programs, agent("acting_harbor:InImage", in_image=True), command_timeout_s=1.0
    )
    assert (result.stop_reason, result.reward) == (StopReason.EXITED, 1.0)


async def test_a_client_is_ended_at_the_rollouts_time_limit(programs: ProgramCluster) -> None:
    programs.engine.say = lambda prompt, turn: f"{EDIT}; {SPOILING}"
    result = await play(
        programs, agent("acting_harbor:InImage", in_image=True), rollout_timeout_s=20.0
    )
    assert (result.stop_reason, result.reward) == (StopReason.WALL_TIME, 1.0)


async def test_a_command_of_one_beside_the_node_is_bounded(programs: ProgramCluster) -> None:
    said = ("```bash\nsleep 600\n```", f"```bash\n{EDIT}\n```", "done")
    programs.engine.say = lambda prompt, turn: said[turn]
    result = await play(programs, agent("solver:Solver"), command_timeout_s=2.0)
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.EXITED, 1.0, 3)
    last = programs.engine._tokenizer.decode(list(programs.engine.asked[-1]))
    assert "exit code 124" in last
