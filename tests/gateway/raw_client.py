"""A client that writes bytes as it likes, for what no library would send."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gateway.server import Address

TIMEOUT_S = 60.0
ASK = {"model": "m", "messages": [{"role": "user", "content": "Fix it."}]}


@dataclass(slots=True)
class Raw:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def until(self, end: bytes) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(end), TIMEOUT_S)

    async def rest(self) -> bytes:
        """Until the server closes; a connection that it cuts has ended as well."""
        found = b""
        try:
            while part := await asyncio.wait_for(self.reader.read(2**16), TIMEOUT_S):
                found += part
        except ConnectionError:
            pass
        return found

    async def answer(self) -> tuple[int, bytes]:
        """Status and body of an answer with a length."""
        head = await self.until(b"\r\n\r\n")
        (length,) = [
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length:")
        ]
        body = await asyncio.wait_for(self.reader.readexactly(length), TIMEOUT_S)
        return int(head.split()[1]), body

    def close(self) -> None:
        self.writer.close()


@asynccontextmanager
async def connected(address: Address) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    raw = Raw(reader, writer)
    try:
        yield raw
    finally:
        raw.close()


def post(
    path: str = "/v1/chat/completions", body: object = ASK, headers: dict[str, str] | None = None
) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"host": "h", "content-length": str(len(data)), **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + data
