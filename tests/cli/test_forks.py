"""Members that are forked from a process with their imports done."""

import os
import signal
import time
from pathlib import Path

import httpx
import psutil
import pytest

from cli.operations.machine.fleet import ONE_THREAD, WORKERS, Fleet, Member
from cli.operations.machine.forks import Forks
from infra.stack import ports
from mainspring.artifacts import batch_invariance
from mainspring.errors import WorkFailed
from tests.infra.policy.tiny_model import save_tiny_model
from tests.processes import runs, words
from tests.waiting import until

ENGINE = ("engine.server",)


def parent_of(member: Member) -> psutil.Process:
    assert member.pid is not None
    parent = psutil.Process(member.pid).parent()
    assert parent is not None
    return parent


async def test_with_the_fork_server_its_members_end_and_are_started_again(
    stack, tmp_path: Path
) -> None:
    home = ["--home", str(stack.home)]
    members = [
        Member(name, ["worker", "rollout", *home], environment=ONE_THREAD, imports=WORKERS)
        for name in ("one", "two")
    ]
    ended: list[tuple[str, int]] = []
    fleet = Fleet(members, tmp_path, lambda end: ended.append((end.name, end.code)))
    async with fleet:
        await until(lambda: all("worker is up" in _log(fleet, m) for m in members))
        first = [member.pid for member in members]
        server = parent_of(members[0])
        assert server == parent_of(members[1]) and "cli.fork_server" in words(server)
        for member in members:
            assert member.pid is not None and os.getsid(member.pid) == member.pid
            called = words(psutil.Process(member.pid))
            assert called[1:] == ["-m", "mainspring", "worker", "rollout", *home]
        server.kill()
        await until(lambda: len(ended) == 2)
        assert sorted(ended) == [("one", -signal.SIGTERM), ("two", -signal.SIGTERM)]
        assert not any(runs(pid) for pid in first if pid is not None)
        await until(lambda: all(_log(fleet, m).count("worker is up") == 2 for m in members))
        second = [member.pid for member in members]
        assert parent_of(members[0]) != server
    assert not any(runs(pid) for pid in (*first, *second) if pid is not None)
    assert "Traceback" not in (tmp_path / "fork-server-1.log").read_text()


def _log(fleet: Fleet, member: Member) -> str:
    log = fleet.log(member.name)
    return log.read_text() if log.exists() else ""


async def test_an_engine_serves_the_same_bits_forked_or_not(tmp_path: Path) -> None:
    """Torch and its MKL are loaded before it is forked; also after a kill."""
    model, port = save_tiny_model(tmp_path / "model"), ports.pick()
    url = f"http://127.0.0.1:{port}"
    arguments = [
        "serve",
        "--no-restart",
        "--model",
        str(model),
        "--port",
        str(port),
        "--reproducible",
    ]
    environment = ONE_THREAD | batch_invariance.environment()
    body = {
        "input_ids": list(range(5, 40)),
        "sampling_params": {"max_new_tokens": 24, "ignore_eos": True, "sampling_seed": 3},
        "return_logprob": True,
    }

    async def answers() -> bool:
        try:
            async with httpx.AsyncClient() as client:
                return (await client.get(f"{url}/health")).status_code == 200
        except httpx.HTTPError:
            return False

    said = []
    for imports in (ENGINE, ()):
        member = Member("engine", arguments, environment=environment, imports=imports)
        async with Fleet([member], tmp_path, print):
            await until(answers)
            first = member.pid
            assert first is not None
            os.kill(first, signal.SIGKILL)
            killed = time.monotonic()
            await until(lambda pid=first: not runs(pid))
            await until(answers)
            how = "forked" if imports else "started"
            print(f"{how}: answers again {time.monotonic() - killed:.1f} s after the kill")
            async with httpx.AsyncClient(timeout=60.0) as client:
                meta = (await client.post(f"{url}/generate", json=body)).json()["meta_info"]
            said.append(meta["output_token_logprobs"])
    assert len(said[0]) == 24 and said[0] == said[1]


async def test_what_starts_threads_is_not_forked(tmp_path: Path) -> None:
    forks = Forks(["tests.cli.starts_a_thread"], {}, tmp_path / "log")
    with pytest.raises(WorkFailed, match="started 1 threads"):
        await forks.start(["--version"], {}, tmp_path / "member")
    await forks.close()


async def test_a_member_has_its_environment_log_and_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    forks = Forks(WORKERS, ONE_THREAD, tmp_path / "log")
    try:
        fine = await forks.start(["--version"], {}, tmp_path / "fine")
        wrong = await forks.start(["nonsense"], {"NO_COLOR": "1"}, tmp_path / "wrong")
        assert await fine.wait() == 0 and await wrong.wait() == 2
        assert (tmp_path / "fine").read_text().startswith("mainspring ")
        assert "No such command 'nonsense'" in (tmp_path / "wrong").read_text()
        killed = await forks.start(["worker", "rollout", "--help"], {}, tmp_path / "killed")
        killed.send_signal(signal.SIGKILL)
        assert await killed.wait() in (0, -signal.SIGKILL)
    finally:
        await forks.close()
