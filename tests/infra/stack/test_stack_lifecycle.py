"""One stack through its life: up, up again, killed, recovered, down. Real servers throughout."""

import asyncio
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import asyncpg
import psutil
import pytest
from stack_probes import check_mark, leave_mark, processes_of
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from cli.operations.machine import embedded_stack
from cli.operations.machine.embedded_stack import StackInfo, down, revive, status, temporary, up
from infra.stack import home as homes
from infra.stack import postgres_server, temporal_server
from infra.stack.ports import LOOPBACK
from infra.stack.postgres_server import Postgres
from infra.stack.temporal_server import SEARCH_ATTRIBUTES, Temporal
from mainspring.config.settings import load_settings
from mainspring.errors import ServiceError
from migrations import upgrade


@pytest.fixture(scope="module")
async def own() -> AsyncIterator[StackInfo]:
    """Not the one that other tests use: this one is killed."""
    async with temporary("mainspring-life-") as info:
        yield info


def pids(info: StackInfo) -> tuple[int | None, int | None]:
    return Postgres(info.home).daemon.pid(), Temporal(info.home).daemon.pid()


def kill(pid: int | None) -> None:
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=60)


@contextmanager
def zombie(user: int) -> Iterator[int]:
    """Pid of a process that has ended, and that its parent has not collected."""
    with subprocess.Popen(["true"], user=user) as process:
        while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        yield process.pid


async def test_addresses_are_recorded_for_their_owner_alone(own: StackInfo) -> None:
    settings = load_settings(own.home)
    assert settings.database_url == own.database_url
    assert settings.temporal_address == own.temporal_address
    assert settings.temporal_ui == own.temporal_ui
    for name in ("stack.json", "postgres.password"):
        assert stat.S_IMODE((own.home / name).stat().st_mode) == 0o600
    assert await asyncio.to_thread(upgrade.current, own.database_url) == upgrade.head()


async def test_only_the_loopback_interface_is_served_and_a_password_is_asked_for(
    own: StackInfo,
) -> None:
    listening = [
        connection.laddr.ip
        for process in processes_of(own.home)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening and set(listening) == {"127.0.0.1"}
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(own.database_url, password="wrong")


async def test_up_again_reuses_what_runs_also_two_at_once(own: StackInfo) -> None:
    before = pids(own)
    assert await asyncio.gather(up(own.home), up(own.home)) == [own, own]
    assert pids(own) == before and None not in before


async def test_a_recorded_port_in_use_is_refused_by_its_holder(own: StackInfo) -> None:
    """Workers and links know the port: moving in silence would leave them with a stranger."""
    assert await down(own.home) == ["temporal", "postgres"]
    addresses = [own.database_url.rpartition("@")[2].partition("/")[0], own.temporal_address]
    for service, address in zip(("Postgres", "Temporal"), addresses, strict=True):
        port = int(address.rpartition(":")[2])
        with socket.socket() as stranger:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            stranger.bind((LOOPBACK, port))
            stranger.listen()
            with pytest.raises(ServiceError) as refused:
                await up(own.home)
        found = refused.value.message
        assert f"{service}: port {port} of 127.0.0.1 is in use by process {os.getpid()} (" in found
        assert f"mainspring up --{service.lower()}-port" in refused.value.remedy
        assert processes_of(own.home) == []
    assert await up(own.home) == own


async def test_a_port_taken_before_the_first_start_ended_is_avoided(tmp_path: Path) -> None:
    """What no complete start recorded, no worker knows."""
    tmp_path.chmod(0o711)
    server = Temporal(tmp_path)
    homes.make(tmp_path)
    with socket.socket() as stranger:
        stranger.bind((LOOPBACK, 0))
        stranger.listen()
        taken = stranger.getsockname()[1]
        (tmp_path / "run" / "temporal.ports").write_text(f"{taken} {taken}")
        try:
            await server.start()
            assert server.address != f"{LOOPBACK}:{taken}"
        finally:
            server.stop()


async def test_both_killed_nothing_is_lost(own: StackInfo) -> None:
    info = await up(own.home)
    mark = await leave_mark(info.database_url, info.temporal_address)
    assert await revive(own.home) == []
    for pid in pids(info):
        kill(pid)
    assert [(s.pid, s.problem) for s in await status(own.home)] == [(None, "is not running")] * 2
    assert await revive(own.home) == ["postgres", "temporal"]
    assert await up(own.home) == info, "the same addresses: workers find it again"
    await check_mark(info.database_url, info.temporal_address, mark)
    assert all(state.healthy for state in await status(own.home))


async def test_killed_postgres_whose_connection_is_still_at_work(own: StackInfo) -> None:
    """A busy backend outlives its postmaster and holds its shared memory."""
    info = await up(own.home)
    connection = await asyncpg.connect(info.database_url)
    busy = asyncio.ensure_future(
        connection.execute("DO $$ BEGIN LOOP NULL; END LOOP; END $$", timeout=60)
    )
    backend = psutil.Process(connection.get_server_pid())
    await asyncio.sleep(0.3)
    kill(pids(info)[0])
    assert backend.is_running()
    assert await up(own.home) == info
    assert not backend.is_running()
    await asyncio.gather(busy, return_exceptions=True)


async def test_killed_postgres_that_its_parent_has_not_collected(own: StackInfo) -> None:
    info = await up(own.home)
    kill(pids(info)[0])
    lock = own.home / "postgres" / "postmaster.pid"
    # Of the server's own account: Postgres passes over other users' processes.
    with zombie(lock.stat().st_uid) as pid:
        _, *rest = lock.read_text().splitlines()
        lock.write_text("\n".join([str(pid), *rest]))
        assert await revive(own.home) == ["postgres"]
    assert await up(own.home) == info


async def test_a_lost_pid_file_does_not_make_a_second_server(own: StackInfo) -> None:
    info = await up(own.home)
    mark = await leave_mark(info.database_url, info.temporal_address)
    before = pids(info)
    for service in (Postgres(own.home), Temporal(own.home)):
        service.daemon.pid_file.unlink()
    assert await up(own.home) == info
    await check_mark(info.database_url, info.temporal_address, mark)
    temporals = {p.pid for p in processes_of(own.home) if p.name() == "temporal"}
    assert temporals == {pids(info)[1]}
    assert not set(before) & set(pids(info))


async def test_down_finds_servers_without_pid_files(own: StackInfo) -> None:
    await up(own.home)
    for service in (Postgres(own.home), Temporal(own.home)):
        service.daemon.pid_file.unlink()
    assert await down(own.home) == ["temporal", "postgres"]
    assert processes_of(own.home) == []


async def test_a_damaged_stack_file_is_written_anew(own: StackInfo) -> None:
    info = await up(own.home)
    (own.home / "stack.json").write_text("{")
    assert await up(own.home) == info
    assert load_settings(own.home).database_url == info.database_url


async def test_every_search_attribute_is_registered_also_with_an_older_home(
    own: StackInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = await up(own.home)
    assert await registered(info) == set(SEARCH_ATTRIBUTES)
    later = "Novelty"
    monkeypatch.setitem(SEARCH_ATTRIBUTES, later, IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD)
    await up(own.home)
    key = SearchAttributeKey.for_keyword(later)
    client = await Client.connect(info.temporal_address, namespace=info.temporal_namespace)
    await client.start_workflow(
        "Nothing",
        id="novel",
        task_queue="nobody-polls",
        search_attributes=TypedSearchAttributes([SearchAttributePair(key, "yes")]),
    )
    await asyncio.sleep(0.5)
    assert (await client.count_workflows(f"{later} = 'yes'")).count == 1


async def registered(info: StackInfo) -> set[str]:
    service = (await Client.connect(info.temporal_address)).operator_service
    ask = ListSearchAttributesRequest(namespace=info.temporal_namespace)
    listed = await service.list_search_attributes(ask)
    kinds = listed.custom_attributes
    return {name for name, kind in SEARCH_ATTRIBUTES.items() if kinds.get(name) == kind}


async def test_down_leaves_no_process_and_keeps_the_data(own: StackInfo) -> None:
    info = await up(own.home)
    mark = await leave_mark(info.database_url, info.temporal_address)
    running = processes_of(own.home)
    assert len(running) > 2
    started = time.monotonic()
    await down(own.home)
    assert time.monotonic() - started < 10
    assert not psutil.wait_procs(running, timeout=60)[1]
    assert processes_of(own.home) == []
    assert await down(own.home) == []
    assert await up(own.home) == info
    await check_mark(info.database_url, info.temporal_address, mark)


async def test_two_homes_starting_at_once_share_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both find the usual ports free, one of them gets each."""
    for module, name in (
        (postgres_server, "DEFAULT_PORT"),
        (temporal_server, "DEFAULT_PORT"),
        (temporal_server, "DEFAULT_UI_PORT"),
    ):
        with socket.socket() as probe:
            probe.bind((LOOPBACK, 0))
            monkeypatch.setattr(module, name, probe.getsockname()[1])

    async def live(folder: Path) -> tuple[str, str, str]:
        database, server = Postgres(folder), Temporal(folder)
        homes.make(folder)
        try:
            url, _ = await asyncio.gather(asyncio.to_thread(database.start), server.start())
            await check_mark(url, server.address, await leave_mark(url, server.address))
            return url, server.address, server.ui
        finally:
            server.stop()
            database.stop()

    with tempfile.TemporaryDirectory(prefix="mainspring-two-") as folder:
        Path(folder).chmod(0o711)
        one, other = await asyncio.gather(live(Path(folder, "1")), live(Path(folder, "2")))
    assert not set(one) & set(other)


async def test_a_temporary_stack_leaves_nothing() -> None:
    async with temporary("mainspring-gone-") as info:
        pass
    assert not info.home.exists()
    assert processes_of(info.home) == []


async def test_a_temporary_stack_goes_whatever_else_removes_its_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a sandbox does that lost its node."""
    tries: list[Path] = []

    def rmtree(path: Path) -> None:
        tries.append(path)
        if path == home and tries.count(home) == 1:
            shutil.rmtree(home / "logs")
            raise FileNotFoundError(home / "logs")
        shutil.rmtree(path)

    monkeypatch.setattr(embedded_stack, "shutil", SimpleNamespace(rmtree=rmtree))
    async with temporary("mainspring-test-") as stack:
        home = stack.home
    assert not home.exists() and tries.count(home) == 2
