"""`mainspring up | down | status` as a person runs them, as root and as anybody else."""

import json
import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from stack_probes import processes_of

from infra.sandbox.bubblewrap.command import binary
from infra.stack.postgres_server import Postgres
from infra.stack.temporal_server import Temporal

ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("MAINSPRING_")}
EXIT_SERVICE = 3


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mainspring-command-") as folder:
        Path(folder).chmod(0o711)
        home = Path(folder) / "home"
        yield home
        for service in (Temporal(home), Postgres(home)):
            service.stop()


def mainspring(*words: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*prefix, sys.executable, "-m", "mainspring", *words],
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, "COLUMNS": "99"},
        timeout=120,
    )


def test_up_status_kill_status_down(home: Path) -> None:
    before = mainspring("status", "--home", str(home))
    assert before.returncode == EXIT_SERVICE and before.stdout.count("is not running") == 2

    up = mainspring("up", "--home", str(home))
    assert up.returncode == 0, up.stderr
    assert up.stdout.count("answers") == 2 and "Temporal UI  http://127.0.0.1:" in up.stdout
    assert max(map(len, up.stdout.splitlines())) < 100

    killed = Temporal(home).daemon.pid()
    assert killed is not None and f" {killed} " in up.stdout
    psutil.Process(killed).kill()
    half = mainspring("status", "--home", str(home), "--json")
    assert half.returncode == EXIT_SERVICE
    states = {s["service"]: s["problem"] for s in json.loads(half.stdout)["services"]}
    assert states == {"postgres": "", "temporal": "is not running"}

    assert mainspring("down", "--home", str(home)).stdout == "stopped postgres\n"
    assert processes_of(home) == []


def ordinary_user(uid: int) -> tuple[str, ...]:
    """Before a command: a user namespace where the caller has this number and no privileges."""
    prefix = (binary(), "--unshare-user", "--uid", str(uid), "--gid", str(uid))
    prefix += ("--dev-bind", "/", "/", "--")
    if subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine allows no user namespaces")
    return prefix


def test_not_as_root(home: Path) -> None:
    prefix = ordinary_user(pwd.getpwnam("daemon").pw_uid)
    up = mainspring("up", "--home", str(home), "--json", prefix=prefix)
    assert up.returncode == 0, up.stderr
    assert all(service["healthy"] for service in json.loads(up.stdout)["services"])
    (server,) = [p for p in processes_of(home) if "-D" in p.cmdline()]
    assert server.uids().effective == os.geteuid(), "the user's own, not nobody's"
    assert not (home / "postgres").is_symlink()
    down = mainspring("down", "--home", str(home), "--json", prefix=prefix)
    assert json.loads(down.stdout) == {"stopped": ["temporal", "postgres"]}
    assert processes_of(home) == []


def test_user_without_a_name_is_told_what_postgres_lacks(home: Path) -> None:
    """As in containers that run with a number that their /etc/passwd does not know."""
    up = mainspring("up", "--home", str(home), prefix=ordinary_user(54321))
    assert up.returncode == EXIT_SERVICE
    assert "uid 54321 has no name" in up.stderr and "MAINSPRING_DATABASE_URL" in up.stderr


def test_unusable_home_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    up = mainspring("up", "--home", str(tmp_path / "file" / "home"))
    assert up.returncode == EXIT_SERVICE
    assert "cannot be used: Not a directory" in up.stderr and "--home" in up.stderr
    assert "Traceback" not in up.stderr
