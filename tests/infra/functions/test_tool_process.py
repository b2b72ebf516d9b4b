"""The process of a rollout's tools: what its calls give, and how it ends."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from infra.functions import tool_process
from infra.functions.labelled import label_of
from infra.functions.tool_process import ToolProcess, ToolSet
from mainspring.agents.tools.protocol import Misused
from mainspring.environments.protocol import EnvironmentBroken, WorldLost
from mainspring.ids import RolloutId, TaskId
from mainspring.programs.request import ToolCall, ToolSpec
from mainspring.tasks.any_task import AnyTask
from mainspring.tasks.swe_task import SweTask
from tests.processes import runs

TASK = SweTask(
    id=TaskId("t"),
    source="s",
    split="train",
    issue="add subtracts",
    files={"calc.py": "a"},
    tests={"hidden.py": "secret"},
    test_command="python3 hidden.py",
    gold_patch="the fix",
)
HUGE = 64 << 20


class Odd:
    """Does what its argument names."""

    spec = ToolSpec(
        name="odd",
        parameters={
            "type": "object",
            "properties": {"do": {"type": "string"}},
            "required": ["do"],
            "additionalProperties": False,
        },
    )

    async def create(self, task: AnyTask, rollout: RolloutId) -> None:
        self.made_for = f"{task.model_dump_json()} {rollout}"
        self.num_calls = 0

    async def execute(self, arguments: Mapping[str, Any]) -> Any:
        self.num_calls += 1
        match arguments["do"]:
            case "count":
                return f"{self.num_calls} in {os.getpid()}"
            case "tell":
                return self.made_for
            case "variables":
                return " ".join(sorted(os.environ))
            case "print":
                print("not for the policy", flush=True)
                return "printed"
            case "misuse":
                raise Misused("odd: not like this")
            case "lose":
                raise WorldLost("the service is gone")
            case "raise":
                raise KeyError("a key")
            case "number":
                return 7
            case "die":
                os._exit(3)
            case "exit":
                sys.exit(4)
            case "hang":
                await asyncio.sleep(3600)
            case "block":
                while True:
                    pass
            case "memory":
                return str(len(bytearray(HUGE << 10)))
            case "surrogate":
                return "\ud800 \0 \x1b[31m"
        return "" if arguments["do"] == "nothing" else "x" * HUGE

    async def release(self) -> None:
        Path("../../released").write_text(str(self.num_calls))


class Uncreated(Odd):
    async def create(self, task: AnyTask, rollout: RolloutId) -> None:
        raise OSError("no key")


@pytest.fixture
async def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ToolProcess]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("ITS_KEY", "k")
    monkeypatch.setenv("DATABASE_URL", "secret")
    paths = {
        "odd": f"{__name__.rpartition('.')[2]}:Odd",
        "other": f"{__name__.rpartition('.')[2]}:Uncreated",
    }
    of = ToolSet(
        TASK, RolloutId("c/g/0"), paths, ("ITS_KEY",), memory_mb=1024, output_bytes=1 << 20
    )
    process = ToolProcess(of, label_of(str(tmp_path), "tools.c.g.0"), tmp_path / "work")
    yield process
    await process.close()
    assert not list((tmp_path / "work").glob("*"))


def call(do: str, name: str = "odd") -> ToolCall:
    return ToolCall(name=name, arguments=f'{{"do": "{do}"}}')


async def test_calls_are_answered_by_one_process_that_remembers(
    tools: ToolProcess, tmp_path: Path
) -> None:
    first, second = [await tools.call(call("count"), 60.0) for _ in range(2)]
    assert first.output.split()[0] == b"1" and second.output.split()[0] == b"2"
    pid = int(first.output.split()[-1])
    assert pid == int(second.output.split()[-1]) != os.getpid()
    at_once = await asyncio.gather(*(tools.call(call("count"), 60.0) for _ in range(3)))
    assert sorted(each.output.split()[0] for each in at_once) == [b"3", b"4", b"5"]
    await tools.release()
    assert not runs(pid)
    assert (tmp_path / "released").read_text() == "5"


async def test_a_tool_sees_what_an_agent_may_see_and_no_variables(tools: ToolProcess) -> None:
    told = (await tools.call(call("tell"), 60.0)).output.decode()
    assert "add subtracts" in told and "c/g/0" in told
    assert "secret" not in told and "the fix" not in told
    names = (await tools.call(call("variables"), 60.0)).output.decode().split()
    assert "ITS_KEY" in names and "DATABASE_URL" not in names


@pytest.mark.parametrize(
    ("do", "returncode", "output"),
    [
        ("print", 0, b"printed"),
        ("nothing", 0, b""),
        ("misuse", 2, b"odd: not like this"),
        ("surrogate", 0, b"? \0 \x1b[31m"),
        ('count", "more": "', 2, b"odd: Additional properties are not allowed"),
        ("long", 0, b"x" * (1 << 20)),
    ],
)
async def test_an_answer_is_told_as_it_is(
    tools: ToolProcess, do: str, returncode: int, output: bytes
) -> None:
    result = await tools.call(call(do), 60.0)
    assert result.returncode == returncode and result.output.startswith(output)
    assert result.truncated == (do == "long") and len(result.output) <= 1 << 20


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (call("raise"), "tool 'odd': execute raised KeyError: 'a key'"),
        (call("number"), "tool 'odd': execute gave a int, expected str"),
        (call("memory"), "tool 'odd': execute raised MemoryError"),
        (call("count", "other"), "tool 'other': create raised OSError: no key"),
    ],
)
async def test_a_tool_at_fault_is_named(tools: ToolProcess, given: ToolCall, message: str) -> None:
    with pytest.raises(EnvironmentBroken, match=message) as broken:
        await tools.call(given, 60.0)
    assert broken.value.remedy


@pytest.mark.parametrize(
    ("do", "message"),
    [
        ("lose", "tool 'odd': the service is gone"),
        ("die", "ended in a call of odd: it ended its process with exit code 3"),
        ("exit", "ended in a call of odd: it raised SystemExit: 4"),
    ],
)
async def test_a_process_that_is_lost_is_lost_with_its_world(
    tools: ToolProcess, do: str, message: str
) -> None:
    await tools.call(call("count"), 60.0)
    with pytest.raises(WorldLost, match=message):
        await tools.call(call(do), 60.0)


@pytest.mark.parametrize("do", ["hang", "block"])
async def test_the_time_limit_ends_the_process_and_the_next_call_has_another(
    tools: ToolProcess, do: str
) -> None:
    before = (await tools.call(call("count"), 60.0)).output
    late = await tools.call(call(do), 0.5)
    assert (late.returncode, late.timed_out) == (-1, True)
    assert not runs(int(before.split()[-1]))
    after = (await tools.call(call("count"), 60.0)).output
    assert after.split()[0] == b"1" and after.split()[-1] != before.split()[-1]


async def test_a_call_that_is_cancelled_leaves_no_process(tools: ToolProcess) -> None:
    pid = int((await tools.call(call("count"), 60.0)).output.split()[-1])
    hanging = asyncio.create_task(tools.call(call("hang"), 600.0))
    await asyncio.sleep(0.2)
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    began = time.monotonic()
    await tools.release()
    assert not runs(pid) and time.monotonic() - began < tool_process.RELEASE_S
