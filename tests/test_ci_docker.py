"""`.ci/docker` never fails what it runs, and leaves no daemon behind."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[1]
NEEDED = "awk bash dirname env id mktemp rm sh sleep tail timeout xargs"
ASK = "import docker; print(docker.from_env().info()['DockerRootDir'])"
NOWHERE = "unix:///nonexistent/docker.sock"


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """The name of a socket is at most 107 bytes, and the daemon makes some deep inside."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def ci_docker(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / ".ci" / "docker"), *command],
        capture_output=True,
        text=True,
        timeout=200,
        env=os.environ | {"DOCKER_HOST": NOWHERE} | environment,
    )


def test_without_docker_one_line_says_why_and_the_command_runs(tmp_path: Path) -> None:
    for program in NEEDED.split():
        (tmp_path / program).symlink_to(shutil.which(program) or "")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    ended = ci_docker("bash", "-c", "echo ran; exit 7", PATH=str(tmp_path), TMPDIR=str(temporary))
    assert ended.returncode == 7
    why, ran = ended.stdout.splitlines()[-2:]
    reason = "apt-get" if os.geteuid() == 0 else "only root"
    assert why.startswith("no Docker: ") and reason in why
    assert ran == "ran"
    assert not list(temporary.iterdir())


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("dockerd") or not shutil.which("docker-registry"),
    reason="only root can start a daemon, and this test installs none",
)
def test_a_daemon_of_its_own_ends_with_the_command(short_folder: Path) -> None:
    ended = ci_docker(sys.executable, "-c", ASK, TMPDIR=str(short_folder))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    if "no Docker: " in ended.stdout:
        pytest.skip(ended.stdout.splitlines()[0])
    assert ended.stdout.splitlines()[-1].startswith(str(short_folder))
    assert not list(short_folder.iterdir())
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(short_folder) in str(p.info)]
