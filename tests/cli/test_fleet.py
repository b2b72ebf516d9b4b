"""The fleet: a member that dies is started again, one that cannot run ends the fleet; all the same
whether it is forked or started by itself."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.operations.machine.fleet import ONE_THREAD, WORKERS, Fleet, Member
from cli.operations.machine.process_ends import ProcessEnd
from mainspring.errors import WorkFailed
from tests.processes import runs
from tests.waiting import until

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("imports", [(), WORKERS], ids=["started", "forked"])
async def test_a_member_that_cannot_run_ends_the_fleet_with_its_log(
    tmp_path: Path, imports: tuple[str, ...]
) -> None:
    deaths: list[ProcessEnd] = []
    arguments = ["serve", "--model", str(tmp_path / "no-such-model")]
    member = Member("broken", arguments, environment=ONE_THREAD, imports=imports)
    async with Fleet([member], tmp_path, deaths.append) as fleet:
        with pytest.raises(WorkFailed) as failed:
            while True:
                fleet.check()
                await asyncio.sleep(0.1)
        log = fleet.log("broken")
    assert [end.code for end in deaths] == [2, 2, 2]
    cause = deaths[-1].cause
    assert "no-such-model" in cause and not cause.startswith("error")
    assert str(deaths[-1]) == f"broken ended: {cause} (exit code 2; log {log})"
    assert failed.value.message == (
        f"{cause}: broken ended 4 times in a row within 30 s of its start (exit code 2); "
        f"its log is {log}"
    )


async def test_a_killed_member_is_started_again_and_stopped_in_the_end(
    tmp_path: Path, lasting: Member
) -> None:
    restarted: list[str] = []
    async with Fleet([lasting], tmp_path, lambda end: restarted.append(end.name)):
        await until(lambda: lasting.pid is not None)
        first = lasting.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: bool(restarted))
        await until(lambda: lasting.pid not in (None, first))
        second = lasting.pid
    assert restarted == ["lasting"]
    assert second is not None and not runs(second)


async def test_an_engine_ends_after_those_that_ask_it(tmp_path: Path) -> None:
    file = tmp_path / "ends"

    def member(name: str, seconds: float, *, is_asked: bool = False) -> Member:
        arguments = [str(file), name, str(seconds)]
        return Member(name, arguments, module="tests.cli.ends_in_turn", is_asked=is_asked)

    members = [member("engine", 0.0, is_asked=True), member("rollout", 0.5), member("trainer", 0.1)]
    async with Fleet(members, tmp_path, print):
        await until(lambda: all(Path(f"{file}.{each.name}").exists() for each in members))
    assert file.read_text().split() == ["trainer", "rollout", "engine"]


async def test_members_die_with_a_killed_fleet(tmp_path: Path, lasting: Member) -> None:
    script = (
        "import asyncio\nfrom pathlib import Path\n"
        "from cli.operations.machine.fleet import Fleet, Member\n"
        "async def main():\n"
        f"    member = Member('lasting', {lasting.arguments!r}, None, {lasting.environment!r})\n"
        f"    member.imports = {lasting.imports!r}\n"
        f"    async with Fleet([member], Path({str(tmp_path)!r}), print):\n"
        "        while member.pid is None:\n            await asyncio.sleep(0.05)\n"
        "        print(member.pid, flush=True)\n        await asyncio.sleep(99)\n"
        "asyncio.run(main())\n"
    )
    fleet = subprocess.Popen(  # noqa: ASYNC220 (killed at once)
        [sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    assert fleet.stdout is not None
    pid = int(await asyncio.to_thread(fleet.stdout.readline))
    await asyncio.sleep(0.5)
    fleet.kill()
    fleet.wait()
    await until(lambda: not runs(pid))


@pytest.fixture(params=[(), WORKERS], ids=["started", "forked"])
def lasting(stack, request: pytest.FixtureRequest) -> Member:
    """A member that stays: a rollout worker of the tests' stack."""
    arguments = ["worker", "rollout", "--home", str(stack.home)]
    return Member("lasting", arguments, environment=ONE_THREAD, imports=request.param)
