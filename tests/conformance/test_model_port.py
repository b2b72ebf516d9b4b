"""A program reaches its gateway by the model port and nothing else, on every backend."""

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sandbox_backend import make_backend, make_spec, output, run

from infra.sandbox.model_port import MAX_CONNECTIONS
from infra.sandbox.netns import NoEntry
from infra.sandbox.protocol import SandboxLost
from mainspring.programs.profile import MODEL_URL
from tests.waiting import until

HERE = Path(__file__).parent
ASK = f"""python3 -c 'import urllib.request as u, sys
print(u.urlopen("{MODEL_URL}/v1/models", data=sys.stdin.buffer.read(), timeout=100).read().decode())
' """
RAW = "exec 3<>/dev/tcp/127.0.0.1/8400"
OWNER = """
import asyncio, os, pathlib, signal, sys
sys.path[:0] = {paths!r}
from test_model_port import make_backend, make_spec
async def main():
    backend = make_backend({name!r}, pathlib.Path({state!r}))
    sandbox = await backend.open(make_spec({name!r}, "kept"))
    await sandbox.open_model_port(lambda: [{address!r}], "former")
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


class Gateway:
    """Answers each request with the key it came under and the size of its body."""

    def __init__(self) -> None:
        self.num_open = 0
        self.preambles: list[bytes] = []
        self.quiet = asyncio.Event()
        """Until it is set, connections are kept without an answer."""
        self.quiet.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_open += 1
        try:
            self.preambles.append(await reader.readline())
            head = await reader.readuntil(b"\r\n\r\n")
            length = 0
            for line in head.split(b"\r\n"):
                if line.lower().startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            left = length
            while left and (piece := await reader.read(min(left, 1 << 16))):
                left -= len(piece)
            waiting = [asyncio.create_task(self.quiet.wait()), asyncio.create_task(reader.read())]
            _, late = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for each in late:
                each.cancel()
            await asyncio.wait(late or waiting)
            body = b"%s %d" % (self.preambles[-1].split()[1], length - left)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            await writer.drain()
            await reader.read()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client is gone
        finally:
            self.num_open -= 1
            writer.close()


@asynccontextmanager
async def gateway_at(port: int = 0) -> AsyncIterator[tuple[Gateway, str]]:
    gateway = Gateway()
    server = await asyncio.start_server(gateway.serve, "127.0.0.1", port)
    try:
        yield gateway, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        gateway.quiet.set()
        server.close()


@pytest.fixture
async def gateway() -> AsyncIterator[tuple[Gateway, str]]:
    async with gateway_at() as both:
        yield both


async def test_a_request_arrives_after_a_line_with_its_key(fresh, gateway) -> None:
    served, address = gateway
    assert (await run(fresh, RAW)).returncode != 0
    await fresh.open_model_port(lambda: [address], "key-1")
    assert await output(fresh, ASK + "<<<hello") == b"key-1 6\n"
    assert served.preambles == [b"MAINSPRING key-1\r\n"]
    await fresh.close_model_port()
    await fresh.close_model_port()
    assert (await run(fresh, RAW)).returncode != 0


async def test_nothing_else_is_reached(fresh, gateway) -> None:
    _, address = gateway
    await fresh.open_model_port(lambda: [address], "key")
    for there in (address.replace(":", "/"), "127.0.0.1/3128", "1.1.1.1/80"):
        assert (await run(fresh, f"exec 3<>/dev/tcp/{there}", 20)).returncode != 0
    seen = await output(fresh, "env; cat /proc/[0-9]*/environ /proc/net/tcp; ls -a /tmp ~")
    assert b"key" not in seen and b"%04X" % int(address.rpartition(":")[2]) not in seen


async def test_opened_again_it_leads_elsewhere_and_cuts(fresh, gateway) -> None:
    served, address = gateway
    served.quiet.clear()
    await fresh.open_model_port(lambda: [address], "first")
    asking = asyncio.create_task(run(fresh, ASK + "<<<hello"))
    await until(lambda: served.num_open == 1)
    async with gateway_at() as (_, other):
        await fresh.open_model_port(lambda: [other], "second")
        assert (await asking).returncode != 0
        await until(lambda: served.num_open == 0)
        assert await output(fresh, ASK + "<<<hello") == b"second 6\n"


async def test_a_request_waits_for_a_gateway_and_takes_the_one_that_answers(fresh) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    nobody = ("127.0.0.1:1", "127.0.0.1:2")
    await fresh.open_model_port(lambda: [nobody[0], f"127.0.0.1:{port}", nobody[1]], "key")
    asking = asyncio.create_task(output(fresh, ASK + "<<<hello", 100))
    await asyncio.sleep(0.5)
    assert not asking.done()
    async with gateway_at(port):
        assert await asking == b"key 6\n"


async def test_it_is_open_again_after_its_owner(backend, gateway, tmp_path: Path) -> None:
    _, address = gateway
    paths = [str(HERE), str(HERE.parents[1])]
    program = OWNER.format(paths=paths, name=backend.name, state=str(tmp_path), address=address)
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    assert await owner.wait() == -signal.SIGKILL
    successor = make_backend(backend.name, tmp_path)
    sandbox = await successor.attach(make_spec(backend.name, "kept"), busy_s=1)
    try:
        assert (await run(sandbox, RAW)).returncode != 0
        await sandbox.open_model_port(lambda: [address], "later")
        assert await output(sandbox, ASK + "<<<hello") == b"later 6\n"
    finally:
        await sandbox.close()
    with pytest.raises(SandboxLost):
        await sandbox.open_model_port(lambda: [address], "late")


async def test_a_port_that_is_taken_inside_is_told(fresh, gateway) -> None:
    _, address = gateway
    squat = """python3 -c 'import socket, time
taken = socket.create_server(("127.0.0.1", 8400))
print("taken", flush=True)
time.sleep(1000)' >/dev/null &
until (exec 3<>/dev/tcp/127.0.0.1/8400) 2>/dev/null; do sleep 0.05; done"""
    assert await output(fresh, squat) == b""
    with pytest.raises(NoEntry, match="has taken port 8400"):
        await fresh.open_model_port(lambda: [address], "key")
    await fresh.stop("none")
    await fresh.open_model_port(lambda: [address], "key")
    assert await output(fresh, ASK + "<<<hello") == b"key 6\n"


async def test_connections_without_end_are_bounded(fresh, gateway) -> None:
    served, address = gateway
    served.quiet.clear()
    await fresh.open_model_port(lambda: [address], "key")
    many = MAX_CONNECTIONS + 20
    flood = f"""python3 -c 'import socket, time
open_ones = [socket.create_connection(("127.0.0.1", 8400)) for _ in range({many})]
for each in open_ones: each.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
print("all sent", flush=True)
time.sleep(1000)'"""
    asking = asyncio.create_task(fresh.run("flood", flood, 900))
    await until(lambda: served.num_open == MAX_CONNECTIONS)
    await asyncio.sleep(0.3)
    assert served.num_open == MAX_CONNECTIONS
    await fresh.stop("flood")
    assert (await asking).output == b"all sent\n"
    await until(lambda: served.num_open == 0)
    served.quiet.set()
    assert await output(fresh, ASK + "<<<hello") == b"key 6\n"


async def test_a_long_body_passes_and_half_a_connection_gets_its_answer(fresh, gateway) -> None:
    _, address = gateway
    await fresh.open_model_port(lambda: [address], "key")
    long = "head -c 60000000 /dev/zero | "
    assert await output(fresh, long + ASK) == b"key 60000000\n"
    half = """python3 -c 'import socket
ours = socket.create_connection(("127.0.0.1", 8400))
ours.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
ours.shutdown(socket.SHUT_WR)
print(b"".join(iter(lambda: ours.recv(4096), b"")).split()[-2:])'"""
    assert await output(fresh, half) == b"[b'key', b'0']\n"
