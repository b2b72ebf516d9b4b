"""A function in its own process: what it is told, how it ends, and that nothing of it is left."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from infra.functions import labelled, process
from infra.functions.labelled import label_of
from infra.functions.messages import Start
from infra.functions.process import FunctionEnd, FunctionProcess, RunCommand
from mainspring.environments.protocol import CommandResult, WorldLost
from mainspring.ids import TaskId
from mainspring.tasks.own_task import OwnTask
from tests.processes import runs
from tests.waiting import until

NODE = "functions-of-a-test"
TASK = OwnTask(id=TaskId("t-1"), kind="game", source="s", split="train", issue="Play.")
KEY = "mss_key"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@asynccontextmanager
async def calling(
    name: str,
    folder: Path,
    *variables: str,
    run_command: RunCommand | None = None,
    memory_mb: int = 1024,
) -> AsyncIterator[FunctionProcess]:
    start = Start(
        path=f"acting:{name}",
        task=TASK.model_dump(mode="json"),
        model_url=f"http://127.0.0.1:1/s/{KEY}/v1",
        key=KEY,
        options={"service": "here"},
        rollout="c/g/000",
        life=2,
        has_sandbox=run_command is not None,
        memory_mb=memory_mb,
    )
    label = label_of(NODE, name)
    async with process.running(start, variables, label, folder, run_command) as function:
        yield function
    assert not runs(function.pid)
    assert label not in {found for _, found in labelled._labels()}
    assert list(folder.iterdir()) == []


async def end_of(name: str, folder: Path, *variables: str, **options: Any) -> FunctionEnd:
    async with calling(name, folder, *variables, **options) as function:
        async with asyncio.timeout(120):
            return await function.ended()


async def test_it_returns_and_its_output_is_kept(tmp_path: Path) -> None:
    async with calling("half", tmp_path) as function:
        end = await function.ended()
    assert end.returncode == 0 and end.result is not None
    assert (end.result.data, end.result.type, end.result.is_number) == (b"0.5", "float", True)
    assert await function.output() == "the task is t-1\n"


async def test_it_is_called_by_name_with_all_that_it_takes(tmp_path: Path) -> None:
    end = await end_of("told", tmp_path)
    assert end.result is not None, end
    assert json.loads(end.result.data) == {
        "task": TASK.model_dump(mode="json"),
        "model_url": f"http://127.0.0.1:1/s/{KEY}/v1",
        "key": KEY,
        "options": {"service": "here"},
        "rollout": "c/g/000",
        "life": 2,
        "has_sandbox": False,
    }


async def test_secrets_of_its_node_are_not_in_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {
        "MAINSPRING_DATABASE_URL": "postgresql://u:hunter2@h/d",
        "MAINSPRING_POLICY_API_KEY": "hunter2",
        "OPENAI_API_KEY": "hunter2",
        "AWS_SECRET_ACCESS_KEY": "hunter2",
        "HTTPS_PROXY": "http://u:hunter2@h",
        "GAME_URL": "http://game",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    end = await end_of("environment", tmp_path, "GAME_URL", "NOT_SET")
    assert end.result is not None
    seen = json.loads(end.result.data)
    assert "hunter2" not in "".join(seen.values()) and "NOT_SET" not in seen
    assert seen["GAME_URL"] == "http://game" and seen["PATH"] == os.environ["PATH"]
    assert "127.0.0.1" in seen["NO_PROXY"]


@pytest.mark.parametrize(
    ("name", "code", "error"),
    [
        ("raises", 1, "raised ValueError: no such move in this game (at "),
        ("exits", 1, "raised SystemExit: 3 (at "),
        ("ends_its_process", 3, "ended its process with exit code 3 before it returned"),
        ("kills_itself", -9, "was ended by signal 9"),
        ("forgets_to_return", 1, "returned None"),
        ("gives_an_object", 1, "returned a object that is neither"),
        ("gives_nan", 1, "returned a float that is neither"),
        ("gives_too_much", 1, "at most 16777216 are stored"),
        ("leaks", 1, "ran out of memory: raised MemoryError"),
        ("plain", 1, "cannot be called: function 'acting:plain' is not async"),
        ("absent", 1, "cannot be called: function 'acting:absent' cannot be imported"),
    ],
)
async def test_one_that_does_not_return_tells_why(
    tmp_path: Path, name: str, code: int, error: str
) -> None:
    end = await end_of(name, tmp_path, memory_mb=256)
    assert (end.returncode, end.result) == (code, None)
    assert error in end.error


async def test_what_it_raised_is_its_output_with_where(tmp_path: Path) -> None:
    async with calling("raises", tmp_path) as function:
        await function.ended()
    output = await function.output()
    assert output.startswith("before\n") and "acting.py" in output
    assert "ValueError: no such move" in output


async def test_one_that_is_lost_asks_for_another_life(tmp_path: Path) -> None:
    with pytest.raises(WorldLost, match="its service was restarted"):
        await end_of("is_lost", tmp_path)


async def test_output_without_end_is_bounded_and_its_end_is_kept(tmp_path: Path) -> None:
    async with calling("prints_without_end", tmp_path) as function:
        end = await function.ended()
    output = await function.output()
    assert "RuntimeError: enough" in end.error and "19999 x" in output
    assert len(output) <= process.OUTPUT_BYTES


async def test_one_that_blocks_is_ended_at_once(tmp_path: Path) -> None:
    started = time.monotonic()
    async with calling("blocks", tmp_path) as function:
        await until(lambda: b"blocking" in function._output)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await function.ended()
        before_the_end = time.monotonic()
    assert time.monotonic() - before_the_end < 5 and time.monotonic() - started < 60


async def test_threads_that_it_leaves_do_not_keep_it(tmp_path: Path) -> None:
    end = await end_of("leaves_a_thread", tmp_path)
    assert end.result is not None and end.result.data == b"1"


async def test_processes_that_it_leaves_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own end is seen while they hold its output open."""
    monkeypatch.setattr(process, "EXIT_S", 3600.0)
    async with calling("leaves_processes", tmp_path) as function:
        async with asyncio.timeout(60):
            end = await function.ended()
        assert end.result is not None
        left = json.loads(end.result.data)["pids"]
        assert all(map(runs, left))
    assert not any(map(runs, left))
    await function.output()


async def test_one_that_is_killed_is_noticed_while_its_child_holds_its_output(
    tmp_path: Path,
) -> None:
    async with calling("leaves_a_process_and_is_killed", tmp_path) as function:
        async with asyncio.timeout(30):
            end = await function.ended()
        assert end == FunctionEnd(-9, error="was ended by signal 9")


async def test_what_it_writes_is_removed(tmp_path: Path) -> None:
    end = await end_of("writes_a_file", tmp_path)
    assert end.result is not None
    written = Path(end.result.data.decode())
    assert written.parent == tmp_path and not written.exists()


async def test_its_commands_are_run_each_once(tmp_path: Path) -> None:
    asked: list[tuple[int, str, float | None]] = []

    async def run(number: int, command: str, timeout_s: float | None) -> CommandResult:
        asked.append((number, command, timeout_s))
        await asyncio.sleep(0.05 * (5 - number))
        return CommandResult(0, command.encode())

    # Of a task with a repository: what it returns has no meaning.
    end = await end_of("asks_for_commands", tmp_path, run_command=run)
    assert end.returncode == 0, end.error
    assert sorted(asked) == [(n, f"echo {n}", n + 1) for n in range(5)]


async def test_a_command_that_is_given_up_does_not_keep_the_next_one(tmp_path: Path) -> None:
    asked: list[str] = []
    one_runs = asyncio.Lock()

    async def run(number: int, command: str, timeout_s: float | None) -> CommandResult:
        async with one_runs:
            asked.append(command)
            await asyncio.sleep(0.5 if command == "slow" else 0)
            return CommandResult(0, command.encode())

    end = await end_of("gives_up_a_command", tmp_path, run_command=run)
    assert (end.returncode, asked) == (0, ["slow", "next"]), end.error


async def test_a_sandbox_that_is_lost_ends_the_function(tmp_path: Path) -> None:
    async def run(number: int, command: str, timeout_s: float | None) -> CommandResult:
        raise WorldLost("its sandbox is gone")

    with pytest.raises(WorldLost, match="its sandbox is gone"):
        await end_of("asks_for_commands", tmp_path, run_command=run)


@asynccontextmanager
async def holder(folder: Path, name: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """A node's process, and the pid of the function that it calls."""
    here = Path(__file__)
    search = os.pathsep.join((str(here.parent), str(here.parents[3])))
    holding = await asyncio.create_subprocess_exec(
        *(sys.executable, str(here.with_name("holding.py")), str(folder), NODE, name),
        env={**os.environ, "PYTHONPATH": search},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert holding.stdout is not None
        yield holding, int(await holding.stdout.readline())
    finally:
        if holding.returncode is None:
            holding.kill()
        await holding.wait()


async def test_one_that_is_killed_before_it_reads_what_it_is_told_was_killed(
    tmp_path: Path,
) -> None:
    """The kernel tells of such an end by a connection that is reset, not by its end."""
    async with calling("half", tmp_path) as function:
        # The interpreter takes longer to start than this takes.
        os.kill(function.pid, signal.SIGKILL)
        async with asyncio.timeout(60):
            end = await function.ended()
    assert (end.returncode, end.error) == (-signal.SIGKILL, "was ended by signal 9")


async def test_it_ends_with_its_node(tmp_path: Path) -> None:
    async with holder(tmp_path, "blocks") as (holding, pid):
        assert runs(pid)
        holding.kill()
        await holding.wait()
        await until(lambda: not runs(pid), 20)


async def test_the_next_process_of_a_node_ends_what_the_last_one_left(tmp_path: Path) -> None:
    async with holder(tmp_path, "leaves_processes") as (holding, _):
        assert holding.stdout is not None
        left = json.loads(await holding.stdout.readline())["pids"]
        holding.send_signal(signal.SIGKILL)
        await holding.wait()
    assert any(map(runs, left))
    # Of another owner, also one whose name begins alike: none of its own.
    assert labelled.kill_left("functions") == labelled.kill_left(f"{NODE}-2") == 0
    assert labelled.kill_left(NODE) >= 1
    await until(lambda: not any(map(runs, left)), 20)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("acting:half", ""),
        ("acting:with_a_default", ""),
        ("acting:plain", "is not async, expected an async function"),
        ("acting:wants_more", "needs reward_model, which it is not given by name"),
        ("acting:absent", "cannot be imported: AttributeError"),
        ("nowhere_at_all:f", "cannot be imported: ModuleNotFoundError"),
    ],
)
async def test_a_machine_tells_whether_it_can_call_a_function(path: str, problem: str) -> None:
    found = await process.problem_of(path)
    assert problem in found and bool(problem) == bool(found)
