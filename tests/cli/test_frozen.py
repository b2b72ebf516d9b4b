"""A process that stands still is ended and started again; one that only looks so is left alone."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cli.operations.machine import frozen
from cli.operations.machine.embedded_stack import StackInfo, status, temporary
from cli.operations.machine.fleet import ONE_THREAD, WORKERS, Fleet, Member, keep_until
from cli.operations.machine.frozen import FrozenWatch, KeptProcess
from tests.waiting import until

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
child.wait()
"""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen, "FROZEN_S", 0.5)
    monkeypatch.setattr(frozen, "LOOK_S", 0.2)
    monkeypatch.setattr("cli.operations.machine.fleet.LOOK_S", 0.2)


@pytest.fixture
def family() -> Iterator[tuple[psutil.Process, psutil.Process]]:
    """A process and its child."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        yield psutil.Process(parent.pid), child
        for process in (child, parent):
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue


def stop(process: psutil.Process) -> None:
    process.suspend()
    while process.status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)


def looks(watch: FrozenWatch, watched: KeptProcess, number: int) -> list[int]:
    return [each.pid for _ in range(number) for each in watch.end_frozen([watched])]


def test_it_is_ended_after_its_looks_and_told(family) -> None:
    parent, _ = family
    watch, watched = FrozenWatch(), KeptProcess("trainer", parent.pid, with_children=False)
    assert looks(watch, watched, 5) == []
    stop(parent)
    assert looks(watch, watched, 2) == []
    [ended] = watch.end_frozen([watched])
    assert str(ended).startswith(f"trainer: process {parent.pid} stood still for ")
    while parent.is_running() and parent.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert looks(watch, watched, 5) == []


def test_one_that_continues_begins_anew(family) -> None:
    parent, _ = family
    watch, watched = FrozenWatch(), KeptProcess("engine", parent.pid, with_children=False)
    for _ in range(3):
        stop(parent)
        assert looks(watch, watched, 2) == []
        parent.resume()
        assert looks(watch, watched, 1) == []
    assert parent.is_running()


def test_a_child_is_ended_where_it_is_ours_and_left_where_it_is_in_a_sandbox(family) -> None:
    parent, child = family
    stop(child)
    assert looks(FrozenWatch(), KeptProcess("sandbox", parent.pid, with_children=False), 9) == []
    assert child.status() == psutil.STATUS_STOPPED
    assert looks(FrozenWatch(), KeptProcess("trainer", parent.pid, with_children=True), 3) == [
        child.pid
    ]


def test_what_was_never_there_and_what_is_gone_is_passed_over(family) -> None:
    parent, child = family
    gone = KeptProcess("rollout", max(psutil.pids()) + 100_000, with_children=True)
    assert looks(FrozenWatch(), gone, 5) == []
    stop(parent)
    watch, watched = FrozenWatch(), KeptProcess("rollout", parent.pid, with_children=True)
    looks(watch, watched, 2)
    parent.kill()
    assert child.is_running()
    assert looks(watch, watched, 3) == []


@pytest.mark.parametrize("imports", [(), WORKERS], ids=["started", "forked"])
async def test_a_member_that_stands_still_is_started_again(
    stack: StackInfo, tmp_path: Path, imports: tuple[str, ...]
) -> None:
    arguments = ["worker", "rollout", "--home", str(stack.home)]
    member = Member("rollout", arguments, environment=ONE_THREAD, imports=imports)
    said: list[str] = []
    async with Fleet([member], tmp_path, lambda end: said.append(str(end))) as fleet:
        await until(lambda: member.pid is not None)
        first = member.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)

        async def is_another() -> bool:
            return member.pid not in (None, first)

        async with asyncio.timeout(60):
            await keep_until(is_another, fleet, stack.home, said.append)
    assert f"rollout: process {first} stood still" in said[0]
    assert said[0].endswith("it is started again")
    assert "rollout ended: it was killed from outside" in said[1]


@pytest.mark.parametrize("name", ["postgres", "temporal"])
async def test_a_service_that_stands_still_is_started_again(tmp_path: Path, name: str) -> None:
    async with temporary("mainspring-frozen-") as info, Fleet([], tmp_path, print) as fleet:
        [first] = [each.pid for each in await status(info.home) if each.service == name]
        assert first is not None
        server = psutil.Process(first)
        for process in (server, *server.children(recursive=True)):
            process.suspend()
        said: list[str] = []

        async def is_another() -> bool:
            [state] = [each for each in await status(info.home) if each.service == name]
            return state.healthy and state.pid != first

        async with asyncio.timeout(90):
            await keep_until(is_another, fleet, info.home, said.append)
        assert any(f"{name}: process {first} stood still" in each for each in said)
        assert f"{name} ended: started again" in said
