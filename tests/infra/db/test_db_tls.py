"""A Postgres with TLS: the pool, LISTEN and the migrations reach it by one URL.
What is wrong with a certificate is told in one sentence."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
from other_servers import TlsServer, speaking_tls
from sqlalchemy import text

from infra.db.database import Database, driver_connection
from infra.db.listening import Notices, prove_notices
from mainspring.errors import DatabaseError, MainspringError
from migrations import upgrade
from tests.certificates import Authority
from tests.waiting import until


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder)


@pytest.fixture
async def tls(fresh_database: str, authority: Authority) -> AsyncIterator[TlsServer]:
    certificate = authority.certificate("server", "127.0.0.1")
    async with speaking_tls(fresh_database, certificate) as server:
        yield server


async def test_one_url_reaches_the_pool_and_the_listener_and_the_migrations(
    tls: TlsServer, authority: Authority
) -> None:
    url = f"{tls.url}?sslmode=verify-full&sslrootcert={authority.file}&application_name=mine"
    await asyncio.to_thread(upgrade.upgrade, url)
    assert await asyncio.to_thread(upgrade.current, url) == upgrade.head()
    async with Database.open(url) as db:
        await db.check()
        notices = Notices(url, "told")
        async with notices.listening():
            with notices.of("x") as event:
                await until(lambda: _is_heard(db, event))
        assert await prove_notices(url, db)
        async with db.statement() as connection:
            assert await connection.scalar(text("SHOW application_name")) == "mine"
    assert tls.seen == ["TLSv1.3 "] * 5  # each of them


async def _is_heard(db: Database, event: asyncio.Event) -> bool:
    async with db.statement() as connection:
        await connection.execute(text("SELECT pg_notify('told', 'x')"))
    await asyncio.sleep(0.05)
    return event.is_set()


@pytest.mark.parametrize("mode", ["disable", "allow", "prefer", "require", "verify-ca"])
async def test_the_other_modes_work_as_well(
    tls: TlsServer, authority: Authority, mode: str
) -> None:
    root = f"&sslrootcert={authority.file}" if mode == "verify-ca" else ""
    async with Database.open(f"{tls.url}?sslmode={mode}{root}") as db:
        assert await db.revision() is None
    # `allow` tries without first, as libpq does.
    assert len(tls.seen) == (mode not in ("disable", "allow"))


async def refusal(url: str) -> MainspringError:
    """What a pool, and then a listener, is refused with: the same."""
    async with Database.open(url) as db:
        with pytest.raises(DatabaseError) as refused:
            await db.check()
        with pytest.raises(DatabaseError) as listening:
            await prove_notices(url, db)
    assert str(refused.value) == str(listening.value)
    assert urlsplit(url).password not in str(refused.value)
    assert refused.value.remedy and "\n" not in refused.value.message
    return refused.value


async def test_an_unknown_authority(tls: TlsServer, folder: Path) -> None:
    other = Authority(folder, "stranger")
    error = await refusal(f"{tls.url}?sslmode=verify-full&sslrootcert={other.file}")
    assert "authority that is not in sslrootcert" in error.message


async def test_an_expired_certificate(fresh_database: str, authority: Authority) -> None:
    old = authority.certificate("expired", "127.0.0.1", expired=True)
    async with speaking_tls(fresh_database, old) as tls:
        error = await refusal(f"{tls.url}?sslmode=verify-ca&sslrootcert={authority.file}")
    assert "has expired" in error.message
    assert "renew" in error.remedy


async def test_a_certificate_for_another_host(fresh_database: str, authority: Authority) -> None:
    certificate = authority.certificate("elsewhere", "db.example")
    async with speaking_tls(fresh_database, certificate) as tls:
        url = f"{tls.url}?sslrootcert={authority.file}&sslmode="
        error = await refusal(f"{url}verify-full")
        async with Database.open(f"{url}verify-ca") as db:
            assert await db.revision() is None
    assert "names another host" in error.message


async def test_a_server_without_tls(fresh_database: str) -> None:
    error = await refusal(f"{fresh_database}?sslmode=require")
    assert "speaks no TLS" in error.message


async def test_a_file_that_is_no_certificate(tls: TlsServer, folder: Path) -> None:
    (folder / "noise").write_text("noise")
    error = await refusal(f"{tls.url}?sslmode=verify-full&sslrootcert={folder}/noise")
    assert "cannot be read as PEM" in error.message
    missing = await refusal(f"{tls.url}?sslmode=verify-full")
    assert "root certificate file" in missing.message


async def test_a_client_s_certificate_and_its_locked_key(
    fresh_database: str, authority: Authority
) -> None:
    server = authority.certificate("server", "127.0.0.1")
    own = authority.certificate("client", password="locked")
    async with speaking_tls(fresh_database, server, authority.file) as tls:
        url = f"{tls.url}?sslmode=verify-full&sslrootcert={authority.file}"
        without = await refusal(url)
        url += f"&sslcert={own.cert}&sslkey={own.key}&sslpassword="
        async with Database.open(f"{url}locked") as db:
            assert await db.revision() is None
        assert tls.seen == ["TLSv1.3 client"]
        wrong = await refusal(f"{url}hunter2")
    assert "a client's certificate" in without.message
    assert "sslpassword" in wrong.remedy
    assert "hunter2" not in str(wrong)


async def test_the_next_host_is_tried(fresh_database: str, unused_tcp_port: int) -> None:
    place = urlsplit(fresh_database)
    hosts = f"127.0.0.1:{unused_tcp_port},{place.hostname}:{place.port}"
    url = f"postgresql://{place.username}:{place.password}@{hosts}{place.path}"
    async with Database.open(f"{url}?target_session_attrs=read-write") as db:
        assert await db.revision() is None
        assert hosts in db.name


async def test_the_socket_and_the_session_are_watched(fresh_database: str) -> None:
    async with Database.open(f"{fresh_database}?keepalives_idle=7") as db, db.statement() as one:
        below = driver_connection(one)
        assert isinstance(below, asyncpg.Connection)
        sock = below._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 7
        shown = [
            await one.scalar(text(f"SHOW {name}"))
            for name in ("idle_in_transaction_session_timeout", "tcp_user_timeout")
        ]
        assert shown == ["45s", "45000"]
