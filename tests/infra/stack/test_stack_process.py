"""A background process is found again, never mistaken, and ended whole."""

import json
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from infra.stack import home as homes
from infra.stack.service_process import Daemon
from mainspring.errors import ServiceError
from tests.processes import runs
from tests.waiting import DEADLINE_S


@pytest.fixture
def daemon(tmp_path: Path):
    homes.make(tmp_path)
    daemon = Daemon(Path(sys.executable).resolve().name, tmp_path, tmp_path)
    yield daemon
    daemon.stop(signal.SIGKILL)


def run(daemon: Daemon, program: str) -> int:
    """Start it and wait until it has printed `ready`."""
    pid = daemon.start([str(Path(sys.executable).resolve()), "-uc", program])
    deadline = time.monotonic() + DEADLINE_S
    while "ready" not in daemon.log_tail():
        assert time.monotonic() < deadline, daemon.log_tail()
        time.sleep(0.02)
    return pid


IDLE = "import time; print('ready'); time.sleep(60)"
STUBBORN = f"""
import signal, subprocess, sys
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('child', child.pid)
{IDLE}
"""


def test_found_again_until_stopped(daemon: Daemon) -> None:
    pid = run(daemon, IDLE)
    assert Daemon(daemon.name, daemon.home, daemon.folder).pid() == pid
    assert daemon.stop() is True
    assert daemon.pid() is None and not daemon.pid_file.exists()
    assert daemon.stop() is False


def test_a_recycled_pid_is_not_it_and_is_not_killed(daemon: Daemon) -> None:
    other = psutil.Popen([sys.executable, "-c", IDLE])
    try:
        record = {"pid": other.pid, "started": other.create_time() - 3600}
        daemon.pid_file.write_text(json.dumps(record))
        assert daemon.pid() is None
        assert daemon.stop() is False
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_one_that_ignores_sigterm_is_killed_with_its_children(daemon: Daemon) -> None:
    pid = run(daemon, STUBBORN)
    child = int(daemon.log_tail().split("child ")[1].split()[0])
    assert daemon.stop(timeout_s=0.3) is True
    _, alive = psutil.wait_procs([psutil.Process(p) for p in (pid, child) if runs(p)], timeout=60)
    assert not alive


def test_one_without_a_pid_file_does_not_survive_the_next_start(daemon: Daemon) -> None:
    lost = run(daemon, IDLE)
    daemon.pid_file.unlink()
    assert run(daemon, IDLE) != lost
    assert not runs(lost)


def test_log_tail_begins_at_the_last_start(daemon: Daemon) -> None:
    run(daemon, f"print('first life');{IDLE}")
    daemon.stop()
    run(daemon, f"print('second life');{IDLE}")
    assert "second life" in daemon.log_tail()
    assert "first life" not in daemon.log_tail()
    assert "first life" in daemon.log.read_text()


def test_it_sees_no_secrets_of_the_caller(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-123")
    run(daemon, f"import os; print(sorted(os.environ));{IDLE}")
    assert "SOME_API_KEY" not in daemon.log_tail() and "PATH" in daemon.log_tail()


def test_a_missing_program_is_named(daemon: Daemon) -> None:
    with pytest.raises(ServiceError, match="/no/such/program cannot be run"):
        daemon.start(["/no/such/program"])
    assert daemon.pid() is None
