"""A trial sandbox of a process that was killed in the middle is ended by the next trial; one of a
process that lives is left alone."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from infra.process_start import start_of
from infra.sandbox.bubblewrap.command import Bind
from infra.sandbox.bubblewrap.owner import owner_of
from infra.sandbox.bubblewrap.process import ConfinedShell, NoProcess
from infra.sandbox.bubblewrap.trial import Trial

ETC = Bind(Path("/etc"), "/etc", writable=False)


async def _spawn(directory: Path) -> int:
    """A trial sandbox of this process, which does not end it; its first process."""
    name = f"trial-{os.getpid()}-{start_of(os.getpid())}-{os.urandom(4).hex()}"
    home = directory / name
    home.mkdir(parents=True)
    shell = await ConfinedShell.spawn(home, owner_of("trial", is_mapped=True), [ETC], tmp_mb=1)
    return shell.pid


@pytest.mark.skipif(os.geteuid() != 0, reason="only root tries whether ids can be mapped")
async def test_the_next_trial_ends_it(tmp_path: Path) -> None:
    try:
        of_this_process = await _spawn(tmp_path)
    except NoProcess as reason:
        pytest.skip(f"no user namespaces here: {reason}")
    command = [sys.executable, __file__, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:  # noqa: ASYNC220
        assert other.stdout is not None
        left = int(await asyncio.to_thread(other.stdout.readline))
        os.kill(other.pid, signal.SIGKILL)
    assert psutil.pid_exists(left), "it outlives the process that started it"
    await Trial(tmp_path, ETC).may_map()
    assert not psutil.pid_exists(left)
    assert psutil.pid_exists(of_this_process)
    [home] = tmp_path.iterdir()
    assert home.name.startswith(f"trial-{os.getpid()}-")
    os.kill(of_this_process, signal.SIGKILL)


async def _main(directory: Path) -> None:
    print(await _spawn(directory), flush=True)
    await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1])))
