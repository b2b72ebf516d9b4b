"""A gateway that stands still is named, and one that this machine cannot reach is not."""

import asyncio
import socket
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from infra.temporal import seen_waits
from infra.temporal.seen_waits import _silent_gateways
from mainspring.config.settings import load_settings
from mainspring.protocol.activities import GENERATE, RUN_PROGRAM
from mainspring.words.waits import Pending, PendingState

AT = datetime(2026, 1, 2, tzinfo=UTC)
PLAYS = Pending(
    of="rollout/c/0/0",
    activity=RUN_PROGRAM.name,
    queue="sandbox/a",
    state=PendingState.STARTED,
    attempt=1,
    since=AT - timedelta(seconds=30),
)


async def test_who_takes_a_connection_and_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seen_waits, "GATEWAY_TIMEOUT_S", 3.0)

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    async def babble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"another protocol\n")
        writer.close()

    with socket.socket() as frozen, socket.socket() as unused:
        for each in (frozen, unused):
            each.bind(("127.0.0.1", 0))
        frozen.listen()  # as the kernel does for a process that stands still
        servers = [await asyncio.start_server(said, "127.0.0.1", 0) for said in (answer, babble)]
        living = [f"127.0.0.1:{each.sockets[0].getsockname()[1]}" for each in servers]
        silent, absent = (f"127.0.0.1:{each.getsockname()[1]}" for each in (frozen, unused))
        monkeypatch.setenv(
            "MAINSPRING_GATEWAY_ADDRESSES", ",".join([*living, silent, absent, "192.0.2.1:1"])
        )
        settings = load_settings(tmp_path)
        [wait] = await _silent_gateways([PLAYS], AT, settings)
        assert wait.what == f"gateway {silent} does not answer"
        assert "worker gateway" in wait.remedy
        # None is asked where no program plays, or has begun just now.
        others = (replace(PLAYS, activity=GENERATE.name), replace(PLAYS, since=AT))
        assert await _silent_gateways(others, AT, settings) == ()
        for server in servers:
            server.close()
