"""Sandboxes whose program is a client in this process, that asks a gateway call by call.

It connects as a node's model port does, one line with the session's key before the first byte of
HTTP, keeps its connection, and sends its whole history with each request. Invariants: all sessions
of a load ask their first call together; a call that is not answered with 200 ends the load.
Imported by the bench of the gateway.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cli.bench.fakes.no_op import NoBackend, NoSandbox
from infra.sandbox.model_port import PREAMBLE, Gateways
from infra.sandbox.protocol import Sandbox, SandboxSpec
from mainspring.environments.protocol import CommandResult
from mainspring.errors import WorkFailed

OBSERVATION = "<returncode>1</returncode>\n<output>\n{number} passed, 1 failed in 0.0{number}s\n"
"""A client's next message: another text in each call."""


@dataclass(slots=True)
class SessionLoad:
    """The calls of each of these sessions, and the times that they took."""

    num_sessions: int
    num_calls: int
    first: str
    """The first message."""
    latencies_s: list[list[float]] = field(default_factory=list)
    """[session][call] from the first byte sent to the last one read."""
    began: float = 0.0
    ended: float = 0.0
    failure: Exception | None = None
    num_ready: int = 0
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_over(self) -> bool:
        return self.failure is not None or len(self.latencies_s) == self.num_sessions

    async def play(self, gateways: Sequence[str], key: str) -> None:
        """One session, from its first call to its last."""
        self.num_ready += 1
        if self.num_ready == self.num_sessions:
            self.began = time.perf_counter()
            self.ready.set()
        await self.ready.wait()
        host, _, port = gateways[0].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(PREAMBLE.format(key=key).encode())
            self.latencies_s.append(await self.asked(reader, writer))
            self.ended = time.perf_counter()
        finally:
            writer.close()

    async def asked(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> list[float]:
        messages: list[dict[str, Any]] = [{"role": "user", "content": self.first}]
        took_s: list[float] = []
        for number in range(self.num_calls):
            body = json.dumps({"model": "default", "messages": messages}).encode()
            started = time.perf_counter()
            answer = await _post(reader, writer, body)
            took_s.append(time.perf_counter() - started)
            messages.append(answer["choices"][0]["message"])
            messages.append({"role": "user", "content": OBSERVATION.format(number=number)})
        return took_s


class AskingBackend(NoBackend):
    """A backend of sandboxes whose programs play `load`."""

    def __init__(self) -> None:
        self.load: SessionLoad | None = None

    async def open(self, spec: SandboxSpec) -> Sandbox:
        return _AskingSandbox(spec.id, self)


@dataclass(frozen=True, slots=True)
class _AskingSandbox(NoSandbox):
    backend: AskingBackend
    ports: list[tuple[Gateways, str]] = field(default_factory=list)
    """The newest one leads to the gateway."""

    async def open_model_port(self, gateways: Gateways, key: str) -> None:
        self.ports.append((gateways, key))

    async def run(self, turn_id: str, command: str, timeout_s: float) -> CommandResult:
        load = self.backend.load
        if self.ports and load is not None:
            gateways, key = self.ports[-1]
            try:
                await load.play(gateways(), key)
            except Exception as error:
                load.failure = load.failure or error
                raise
        return CommandResult(0, b"", False, False, 0.0)


async def _post(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes
) -> dict[str, Any]:
    """Raises WorkFailed unless the answer is a whole one."""
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: model\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    status, *headers = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
    lengths = [line.partition(":")[2] for line in headers if line.startswith("content-length:")]
    answer = await reader.readexactly(int(lengths[0])) if lengths else b""
    if " 200 " not in f"{status} ":
        raise WorkFailed(
            f"the gateway answered {status!r}: {answer[:300].decode(errors='replace')}",
            remedy="see logs/gateway.log and logs/rollout_worker.log of the bench's folder",
        )
    return json.loads(answer)
