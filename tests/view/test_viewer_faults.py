"""The viewer when something is wrong: the store, the time, the reader, the port, the address."""

import asyncio
import json
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import httpx
import pytest
from served import viewing
from sqlalchemy import text
from store_records import CAMPAIGN, add_group, begin_campaign
from viewed import Told, home_of, play, viewer_of

from infra.db.database import Database
from infra.stack import viewer_address
from mainspring.errors import UsageError
from tests.waiting import until
from view.live import _Poller
from view.server import ViewOptions, check
from view.viewer import Viewer


async def test_a_store_that_is_down_is_named_and_comes_back_by_itself(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await begin_campaign(db)
    free = socket.create_server(("127.0.0.1", 0))
    nowhere = f"postgresql://x:y@127.0.0.1:{free.getsockname()[1]}/none"
    free.close()
    home = home_of(tmp_path, nowhere)
    async with viewer_of(home) as client:
        down = await client.get("/c/first")
        assert down.status_code == 503
        assert "cannot be used" in down.text and 'http-equiv="refresh"' in down.text
        assert (await client.get("/c/first.json")).json()["remedy"]
        # As `mainspring up` records it, on another port than before.
        home_of(tmp_path, store_url)
        assert (await client.get("/c/first")).status_code == 200


async def test_a_home_without_a_store_is_told_what_to_run(tmp_path: Path) -> None:
    async with viewer_of(tmp_path) as client:
        answer = await client.get("/")
    assert answer.status_code == 503 and "mainspring up" in answer.text


async def test_a_schema_of_another_version_names_the_command(
    fresh_database: str, tmp_path: Path
) -> None:
    connection = await asyncpg.connect(fresh_database)
    await connection.execute("CREATE TABLE alembic_version (version_num text)")
    await connection.execute("INSERT INTO alembic_version VALUES ('0001')")
    await connection.close()
    async with viewer_of(home_of(tmp_path, fresh_database)) as client:
        answer = await client.get("/")
    assert answer.status_code == 503
    assert "is at migration 0001" in answer.text and "mainspring db upgrade" in answer.text


async def test_a_query_that_takes_too_long_is_named_by_its_part(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await begin_campaign(db)
    async with viewer_of(home_of(tmp_path, store_url), timeout_s=0.3) as client:
        assert (await client.get("/c/first/tasks")).status_code == 200
        async with db.transaction() as connection:
            await connection.execute(text("LOCK TABLE groups IN ACCESS EXCLUSIVE MODE"))
            late = await client.get("/c/first/tasks")
        assert late.status_code == 503 and "the matrix of tasks" in late.text
        assert (await client.get("/c/first/tasks")).status_code == 200


async def test_temporal_that_stands_still_holds_no_page_up(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await begin_campaign(db)
    home = home_of(tmp_path, store_url)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it takes connections and is silent
        known = json.loads((home / "stack.json").read_text())
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        known["temporal_address"] = address
        (home / "stack.json").write_text(json.dumps(known))
        async with viewer_of(home) as client:
            async with asyncio.timeout(120):
                first = await client.get("/c/first")
                assert first.status_code == 200 and "Temporal has not answered yet" in first.text

                async def is_told() -> bool:
                    return address in (await client.get("/")).text

                # The reason is shown as soon as it is known.
                await until(is_told)


async def test_answers_are_shared_and_kept_and_failures_are_not(tmp_path: Path) -> None:
    viewer = Viewer(home_of(tmp_path, "postgresql://x/y"))
    asked: list[int] = []

    async def ask() -> int:
        asked.append(len(asked))
        await asyncio.sleep(0.01)
        if len(asked) == 1:
            raise UsageError("not yet")
        return asked[-1]

    for task in [asyncio.create_task(viewer.kept("key", 60.0, ask)) for _ in range(3)]:
        with pytest.raises(UsageError):
            await task
    assert [await viewer.kept("key", 60.0, ask) for _ in range(3)] == [1, 1, 1]
    assert await viewer.kept("other", 0.0, ask) == 2 and await viewer.kept("other", 0.0, ask) == 3
    assert asked == [0, 1, 2, 3]
    await viewer.close()


async def test_only_our_names_are_answered(db: Database, store_url: str, tmp_path: Path) -> None:
    async with viewer_of(home_of(tmp_path, store_url), hosts=("lab.example",)) as client:
        for host, status in (
            ("127.0.0.1:8600", 200),
            ("localhost", 200),
            ("[::1]:8600", 200),
            ("LAB.example:80", 200),
            ("evil.example", 421),
            ("127.0.0.1.evil.example:8600", 421),
            ("", 421),
        ):
            assert (await client.get("/", headers={"host": host})).status_code == status, host
        assert (await client.post("/")).status_code == 405


async def test_a_token_is_asked_for_and_kept_as_a_cookie(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    token = "correct horse battery"
    async with viewer_of(home_of(tmp_path, store_url), token=token) as client:
        asked = await client.get("/")
        assert asked.status_code == 401 and 'name="token"' in asked.text
        assert (await client.get("/home.json")).status_code == 401
        assert (await client.get("/static/view.css")).status_code == 200
        wrong = await client.post("/login", data={"token": "wrong"})
        assert wrong.status_code == 401 and "set-cookie" not in wrong.headers
        given = await client.post("/login", data={"token": token})
        cookie = given.headers["set-cookie"]
        assert given.status_code == 303 and "HttpOnly" in cookie and "SameSite=strict" in cookie
        assert token not in cookie
        assert (await client.get("/")).status_code == 200
    async with viewer_of(home_of(tmp_path, store_url), token=token) as client:
        bearer = {"authorization": f"Bearer {token}"}
        assert (await client.get("/home.json", headers=bearer)).status_code == 200
        assert (await client.get("/home.json", headers={"authorization": "Bearer x"})).is_error


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "lab.example"])
def test_another_address_than_loopback_needs_a_token(host: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="reachable from other machines"):
        check(ViewOptions(host=host))
    file = tmp_path / "token"
    with pytest.raises(UsageError, match="cannot be read"):
        check(ViewOptions(host=host, token_file=file))
    file.write_text("short\n")
    with pytest.raises(UsageError, match="has 5 characters"):
        check(ViewOptions(host=host, token_file=file))
    file.write_text("0123456789abcdef\nnot this\n")
    assert check(ViewOptions(host=host, token_file=file)) == "0123456789abcdef"


async def _events(poller: _Poller, last_seen: str = "") -> AsyncIterator[str]:
    async for line in poller.events(last_seen):
        if line.startswith("id:"):
            yield line


async def test_readers_share_one_poller_and_are_told_what_changed(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await begin_campaign(db)
    _, [rollout] = await add_group(db, size=1)
    viewer = Viewer(home_of(tmp_path, store_url))
    poller = _Poller(viewer, CAMPAIGN)
    one, other = _events(poller), _events(poller)
    first = await anext(one)
    assert "event: seen" in first and "event: seen" in await anext(other)
    asking = poller._task
    await play(db, rollout, Told())
    assert "event: changed" in await anext(one) and "event: changed" in await anext(other)
    assert poller._task is asking and poller.num_readers == 2
    await one.aclose()
    await other.aclose()
    # A generator within another one is closed by the loop, soon after.
    await until(lambda: poller.num_readers == 0)
    assert asking is not None
    await until(asking.done)
    # Who comes back with the id of before is told at once.
    missed = _events(poller, first.partition("\n")[0].removeprefix("id: "))
    assert "event: changed" in await anext(missed)
    await missed.aclose()
    # Also by a viewer that was started again, which has no word of its own yet.
    other_viewer = Viewer(viewer.settings.home)
    after = _events(_Poller(other_viewer, CAMPAIGN), first.partition("\n")[0].removeprefix("id: "))
    assert "event: changed" in await asyncio.wait_for(anext(after), 60)
    await after.aclose()
    await other_viewer.close()
    await viewer.close()


@asynccontextmanager
async def _stream(url: str) -> AsyncIterator[httpx.Response]:
    async with (
        httpx.AsyncClient(trust_env=False, timeout=20) as client,
        client.stream("GET", f"{url}/live/c/first") as answer,
    ):
        yield answer


async def test_the_command_takes_the_next_port_and_ends_at_a_signal(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await begin_campaign(db)
    home = home_of(tmp_path / "home", store_url)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with viewing(home, "--port", str(port)) as (process, printed):
            url = printed[-1].removeprefix("viewer ")
            assert printed[0].startswith(f"port {port} is in use")
            assert viewer_address.found(home) == url != f"http://127.0.0.1:{port}"
            assert viewer_address.page_of(home, "r", "a/b c") == f"{url}/r/a/b%20c"
            async with _stream(url) as answer:
                assert answer.headers["content-type"].startswith("text/event-stream")
                assert (await anext(answer.aiter_lines())).startswith("retry:")
                process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(process.wait, 20) == 0
            assert viewer_address.found(home) is None


async def test_a_viewer_that_was_killed_is_not_printed(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    home = home_of(tmp_path / "home", store_url)
    with viewing(home, "--port", "0") as (process, _):
        assert viewer_address.found(home)
        process.kill()
        process.wait()
        assert (home / viewer_address.FILE).exists()
        assert viewer_address.found(home) is None
    (home / viewer_address.FILE).write_text(json.dumps({"url": "x", "process": "damaged"}))
    assert viewer_address.found(home) is None
    (home / viewer_address.FILE).write_text("[")
    assert viewer_address.found(home) is None
