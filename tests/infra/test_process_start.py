"""A process is known by its start, whatever happens to the machine's clock meanwhile."""

import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from infra import process_start
from infra.process_start import is_same, start_of
from infra.sandbox.bubblewrap.process import FirstProcess, NoProcess
from infra.stack.service_process import Daemon
from tests.waiting import until

HOURS_S = 7200.0


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture(params=[HOURS_S, -HOURS_S])
def set_right(request, monkeypatch: pytest.MonkeyPatch):
    """Corrects the clock, as the kernel shows it: the boot was at another time of day."""
    before = psutil.boot_time()

    def correct() -> None:
        monkeypatch.setattr("psutil._pslinux.boot_time", lambda: before + request.param)

    return correct


def test_a_process_outlives_a_correction_of_the_clock(other, set_right) -> None:
    start, me = start_of(other.pid), process_start.this_process()
    set_right()
    assert is_same(other.pid, start)
    assert not process_start.has_ended(me) and process_start.this_process() == me


async def test_a_service_and_a_sandbox_do_too(other, set_right, tmp_path) -> None:
    for folder in ("run", "logs", "data"):
        (tmp_path / folder).mkdir()
    daemon = Daemon("postgres", tmp_path, tmp_path / "data")
    pid = daemon.start([sys.executable, "-c", "import time; time.sleep(600)"])
    FirstProcess.of(other.pid).save(tmp_path)
    set_right()
    assert daemon.pid() == pid
    assert daemon.stop()
    with FirstProcess.load(tmp_path).held():
        pass
    await FirstProcess.load(tmp_path).kill()
    await until(lambda: other.poll() is not None)


def test_another_process_of_the_same_number_is_another_one(other) -> None:
    boot, _, ticks = start_of(other.pid).partition("+")
    assert not is_same(other.pid, f"{boot}+{int(ticks) - 1}")
    assert not is_same(other.pid, f"another-boot+{ticks}")
    assert start_of(other.pid) != start_of(os.getpid())
    with pytest.raises(NoProcess, match="another one now"), FirstProcess(other.pid, 12.0).held():
        pass


def test_what_an_older_version_wrote_is_known(other) -> None:
    created = psutil.Process(other.pid).create_time()
    assert is_same(other.pid, created) and is_same(other.pid, f"{created:.2f}")
    assert not is_same(other.pid, created - 3600)
    with FirstProcess(other.pid, created).held():
        pass


def test_a_process_that_has_gone_has_no_start(other) -> None:
    start = start_of(other.pid)
    other.kill()
    other.wait()
    with pytest.raises(psutil.NoSuchProcess):
        is_same(other.pid, start)
