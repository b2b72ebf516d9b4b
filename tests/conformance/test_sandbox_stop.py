"""A running command is stopped from outside, and nothing of it is left, on each backend."""

import asyncio
import signal
import sys
from pathlib import Path

from sandbox_backend import make_backend, make_spec, output

from infra.sandbox.protocol import Sandbox
from mainspring.environments.protocol import CommandResult
from tests.waiting import DEADLINE_S

HERE = Path(__file__).parent
OWNER = """
import asyncio, os, pathlib, signal, sys
sys.path[:0] = {paths!r}
from test_sandbox_stop import begun, make_backend, make_spec
async def main():
    backend = make_backend({name!r}, pathlib.Path({state!r}))
    sandbox = await backend.open(make_spec({name!r}, "kept"))
    await begun(sandbox, "agent.1", "echo begun; sleep 987")
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
SLEEPERS = "grep -sl 98[678] /proc/[0-9]*/cmdline || echo none"
KNOCK = "(echo hello >/dev/tcp/127.0.0.1/8400); "


async def begun(sandbox: Sandbox, turn: str, command: str) -> asyncio.Task[CommandResult]:
    """Once `command` is about to run: it knocks at the model port."""
    knocked = asyncio.Event()

    def knock(_: object, writer: asyncio.StreamWriter) -> None:
        knocked.set()
        writer.close()

    async with await asyncio.start_server(knock, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        await sandbox.open_model_port(lambda: [f"127.0.0.1:{port}"], "key")
        running = asyncio.create_task(sandbox.run(turn, KNOCK + command, 900))
        async with asyncio.timeout(DEADLINE_S):
            await knocked.wait()
    return running


async def test_what_runs_is_stopped_with_all_it_started(fresh) -> None:
    command = "trap '' TERM INT HUP USR1; setsid sleep 986 & sleep 988 & sleep 987"
    running = await begun(fresh, "agent", command)
    assert not running.done()
    await asyncio.gather(fresh.stop("agent"), fresh.stop("agent"))
    result = await running
    assert (result.returncode, result.timed_out, result.output) == (-1, True, b"")
    assert result.wall_s < 900
    assert await output(fresh, SLEEPERS) == b"none\n"
    assert await fresh.run("agent", command, 900) == result


async def test_what_ended_keeps_its_result_and_loses_its_daemons(fresh) -> None:
    command = "setsid sleep 986 >/dev/null 2>&1 & echo more >> README.md; exit 3"
    result = await fresh.run("agent", command, 60)
    assert (result.returncode, result.timed_out) == (3, False)
    await fresh.run("look", "until grep -sl 98[6] /proc/[0-9]*/cmdline; do sleep 0.05; done", 100)
    assert await output(fresh, SLEEPERS) != b"none\n"
    await fresh.stop("agent")
    assert await output(fresh, SLEEPERS) == b"none\n"
    assert b"+more" in await fresh.diff()


async def test_what_has_not_begun_never_will(fresh) -> None:
    await fresh.stop("agent")
    result = await fresh.run("agent", "touch /tmp/ran", 60)
    assert (result.returncode, result.timed_out, result.output) == (-1, True, b"")
    assert await output(fresh, "ls /tmp/ran 2>&1 | wc -l; ls -A /tmp | grep ran || echo none") == (
        b"1\nnone\n"
    )


async def test_the_next_command_is_not_stopped(fresh) -> None:
    for round in range(8):
        first = asyncio.create_task(fresh.run(f"a{round}", f"sleep 0.0{round}", 60))
        second = asyncio.create_task(fresh.run(f"b{round}", "sleep 0.2; echo whole", 60))
        await asyncio.sleep(0.01 * round)
        await fresh.stop(f"a{round}")
        await first
        result = await second
        # What it left behind is ended with it; the next one either ran before that or after.
        assert (result.returncode, result.output) == (0, b"whole\n"), round


async def test_a_flood_of_processes_is_stopped(fresh) -> None:
    running = await begun(fresh, "bomb", "bomb() { bomb | bomb & }; bomb; sleep 900")
    await fresh.stop("bomb")
    await running
    assert await output(fresh, "echo fine") == b"fine\n"


async def test_the_successor_of_a_node_stops_what_it_left(backend, tmp_path: Path) -> None:
    paths = [str(HERE), str(HERE.parents[1])]
    program = OWNER.format(paths=paths, name=backend.name, state=str(tmp_path))
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    assert await owner.wait() == -signal.SIGKILL
    successor = make_backend(backend.name, tmp_path)
    sandbox = await successor.attach(make_spec(backend.name, "kept"), busy_s=900)
    try:
        running = asyncio.create_task(sandbox.run("agent.1", "touch again; sleep 987", 900))
        await sandbox.stop("agent.1")
        result = await running
        assert (result.returncode, result.timed_out) == (-1, True)
        assert await output(sandbox, "ls again 2>/dev/null || echo none") == b"none\n"
        assert await output(sandbox, SLEEPERS) == b"none\n"
    finally:
        await sandbox.close()
