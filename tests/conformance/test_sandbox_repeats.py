"""What commands print does not depend on the sandbox, its name, its node's user or the time."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from sandbox_backend import make_spec, output

from infra.environments.swe import REPEATING
from infra.sandbox import clock
from infra.sandbox.protocol import BackendUnavailable, SandboxBackend, SandboxSpec
from mainspring.ids import SandboxId

TELLING = (
    "id; hostname; pwd; echo $$ $PPID; env | sort",
    "ls -ln --full-time; git log --format=%H | wc -l",
    "echo $$; sleep 0.05 & echo $!; wait",
    "echo more >> README.md; git -c user.name=a -c user.email=b commit -qam more",
    "git rev-parse HEAD; git log -1 --format=%cI",
    "python3 -c 'print({str(n) for n in range(50)})' 2>&1",
    "echo $$; cat /proc/self/status | grep -E 'Pid|Uid|Gid'",
)


async def printed(backend: SandboxBackend, spec: SandboxSpec) -> list[str]:
    sandbox = await backend.open(spec)
    try:
        answers: list[str] = []
        for number, command in enumerate(TELLING):
            result = await sandbox.run(f"t{number}", command, 30)
            answers.append(result.output.decode())
        return answers
    finally:
        await sandbox.close()


async def test_two_sandboxes_print_the_same(backend):
    specs = [
        replace(make_spec(backend.name, name), environment=REPEATING)
        for name in ("campaign/3/0.0", "another/17/5.2")
    ]
    first, second = await asyncio.gather(*(printed(backend, spec) for spec in specs))
    assert first == second
    assert "uid=0" in first[0] or "uid=1000(agent)" in first[0], first[0]
    assert "2020-01-01" in first[4]


async def test_process_numbers_are_the_same_over_many_turns(backend):
    """More than one reader of output takes in."""
    told: list[list[bytes]] = []
    for name in ("counted", "counted-again"):
        sandbox = await backend.open(make_spec(backend.name, name))
        try:
            told.append([await output(sandbox, f"echo {turn} $$") for turn in range(140)])
        finally:
            await sandbox.close()
    assert told[0] == told[1]
    assert [line.split()[0] for line in told[0]] == [str(turn).encode() for turn in range(140)]


async def test_a_task_has_its_own_date(backend):
    try:
        clock.library()
    except BackendUnavailable as unavailable:
        pytest.skip(unavailable.message)
    wanted = datetime(2024, 5, 1, 12, tzinfo=UTC)
    spec = replace(make_spec(backend.name, "dated"), clock=wanted)
    sandbox = await backend.open(spec)
    try:
        read = datetime.fromtimestamp(int(await output(sandbox, "date +%s")), UTC)
        assert 0 <= (read - wanted).total_seconds() < 60
        program = "python3 -c 'import datetime; print(datetime.date.today())'"
        if b"python3" in await output(sandbox, "type -P python3 || true"):
            assert await output(sandbox, program) == b"2024-05-01\n"
            slept = "python3 -c 'import time; time.sleep(0.01); print(\"slept\")'"
            assert await output(sandbox, slept) == b"slept\n"
        # What only measures is the node's: a timeout ends after its time.
        assert (await sandbox.run("slow", "timeout 0.2 sleep 5", 10)).returncode == 124
        assert await sandbox.diff() == b""
    finally:
        await sandbox.close()


async def test_a_node_without_the_library_is_named(backend, monkeypatch):
    def missing():
        raise BackendUnavailable("a task wants a clock", remedy="install faketime")

    monkeypatch.setattr(clock, "library", missing)
    spec = replace(make_spec(backend.name, "dated"), clock=datetime.now(UTC))
    with pytest.raises(BackendUnavailable, match="clock"):
        await backend.open(spec)
    assert SandboxId("dated") not in await backend.list_open()
