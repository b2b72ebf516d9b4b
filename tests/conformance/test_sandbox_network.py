"""A sandbox whose task names hosts reaches these and nothing else, on every backend."""

import asyncio
import dataclasses
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_backend import make_backend, make_spec, output, run

from infra.sandbox.protocol import SandboxSpec
from tests.web_server import Answer, serving

ASK = """python3 - <<'END'
import urllib.error, urllib.request
try:
    print(urllib.request.urlopen("%s", timeout=60).read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
END"""
OWNER = """
import asyncio, os, pathlib, signal, sys
sys.path[:0] = {paths!r}
from test_sandbox_network import make_backend, networked
async def main():
    backend = make_backend({name!r}, pathlib.Path({state!r}))
    await backend.open(networked({name!r}, "taken-over", {server!r}))
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
HERE = Path(__file__).parent
DIRECT = "exec 3<>/dev/tcp/%s"


class Hello(Answer):
    def do_GET(self) -> None:
        self.answer(b"hello")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving(Hello) as address:
        yield address


def networked(name: str, id: str, server: str) -> SandboxSpec:
    return dataclasses.replace(make_spec(name, id), allow_hosts=(server,))


async def test_only_the_named_hosts_are_reached(backend, server: str) -> None:
    sandbox = await backend.open(networked(backend.name, "networked", server))
    # The address is the sandbox's own, and not for the proxy, unless the command says otherwise.
    through = "unset no_proxy NO_PROXY; "
    assert await output(sandbox, through + ASK % f"http://{server}/") == b"hello\n"
    assert b"403 " in await output(sandbox, through + ASK % "http://example.com/")
    assert (await run(sandbox, DIRECT % server.replace(":", "/"))).returncode != 0
    await sandbox.close()


async def test_others_have_no_way_out(backend, shared) -> None:
    assert await output(shared, "env | grep -i _proxy || echo none") == b"none\n"
    assert (await run(shared, DIRECT % "127.0.0.1/3128")).returncode != 0


async def test_the_way_is_open_again_after_its_owner(backend, server: str, tmp_path: Path) -> None:
    program = OWNER.format(
        paths=[str(HERE), str(HERE.parents[1])],
        name=backend.name,
        state=str(tmp_path),
        server=server,
    )
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    assert await owner.wait() == -signal.SIGKILL
    successor = make_backend(backend.name, tmp_path)
    sandbox = await successor.attach(networked(backend.name, "taken-over", server), busy_s=1)
    answer = await output(sandbox, "unset no_proxy NO_PROXY; " + ASK % f"http://{server}/")
    assert answer == b"hello\n"
    await sandbox.close()
