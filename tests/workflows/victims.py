"""What may be killed under a rollout, and what follows it: each victim has a scene in which
rollouts are played, and which kills it by SIGKILL (a sandbox: by its backend)."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from cluster import bwrap_or_skip, without_workers
from function_rollouts import processes_of
from players import Play, Player
from program_checks import Hold, kill_sandbox, sandbox_of
from program_cluster import (
    ProgramCluster,
    ScriptedEngine,
    gateway_of,
    ungated_cluster,
    without_gateway,
)
from sqlalchemy import select
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from cli.operations.machine.embedded_stack import StackInfo
from gateway.server import serve
from infra.db.tables.program_rows import ModelRequestRow, ProgramLifeRow
from infra.environments.swe import SweWorld
from infra.policy.model.tokenizer import ChatTokenizer
from infra.sandbox.session import LiveSandbox
from mainspring.ids import SandboxId
from mainspring.protocol.program import ASK_AGAIN_SIGNAL, ASK_SIGNAL
from tests.conftest import Standing
from tests.edge_process import Process, edge_process, gateway_process, process
from tests.infra.policy.chat_templates import tokenizer_of
from tests.waiting import until

CLIENTS = ("claude", "codex", "/python3.11")
"""Ends of what starts a client's process."""


@dataclass(frozen=True, slots=True)
class Scene:
    cluster: ProgramCluster
    kill: Callable[[Play, Hold], Awaitable[None]]
    """Returns once what follows the victim has the request whose reply is held."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a scene is made."""

    stack: StackInfo
    standing: Standing
    new_folder: pytest.TempPathFactory
    folder: Path


async def until_told_again(play: Play) -> None:
    """Until the workflow was told again of the request whose reply is held."""

    async def is_so() -> bool:
        signals = [
            event.workflow_execution_signaled_event_attributes
            for event in (await play.handle.fetch_history()).events
        ]
        told = [
            json.loads(each.input.payloads[0].data)
            for each in signals
            if each.signal_name in (ASK_SIGNAL, ASK_AGAIN_SIGNAL)
        ]
        return len(told) > len(set(told))

    await until(is_so)


Kill = Callable[[ProgramCluster, Player, Play], Awaitable[None]]


async def kill_process(cluster: ProgramCluster, player: Player, play: Play) -> None:
    await player.kill(cluster, play)
    # A session outside waits for the reply before it is offered again.
    if player.asks_from != "outside":
        await until_told_again(play)


async def kill_service(cluster: ProgramCluster, player: Player, play: Play) -> None:
    """The rollout finds out with its next action."""
    await player.kill(cluster, play)


async def kill_client(cluster: ProgramCluster, player: Player, play: Play) -> None:
    """All that the sandbox's turn runs, from outside: Harbor's shell tells of the client's end."""
    running = await processes_in(cluster, sandbox_of(play.rollout, 0))
    found = [each for each, words in running if words[0].endswith(CLIENTS)]
    assert found, running
    for each in found:
        each.kill()
    await until_told_again(play)


async def processes_in(
    cluster: ProgramCluster, sandbox: SandboxId
) -> list[tuple[psutil.Process, list[str]]]:
    """With the words of their command."""
    world = cluster.workers.held.get(sandbox)
    assert isinstance(world, SweWorld) and isinstance(world.sandbox, LiveSandbox)
    first = await world.sandbox._handle.find_pid()
    found = []
    for each in psutil.Process(first).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # also a zombie
            found.append((each, each.cmdline()))
    return [(each, words) for each, words in found if words]


async def lose_sandbox(cluster: ProgramCluster, player: Player, play: Play) -> None:
    await kill_sandbox(cluster.workers, sandbox_of(play.rollout, 0))
    if player.asks_from == "sandbox":  # others find out with their next command, after the reply
        await until_told_again(play)


@asynccontextmanager
async def within(how: Kill, place: Place, player: Player) -> AsyncIterator[Scene]:
    """Something that lives in the processes of the shared cluster."""
    cluster = await ungated_cluster(place.standing, place.stack, place.new_folder)
    async with gateway_of(place.stack, cluster.workers) as cluster.url:
        yield Scene(cluster, lambda play, hold: how(cluster, player, play))


@asynccontextmanager
async def gateway(place: Place, player: Player, *, edge_dies: bool = False) -> AsyncIterator[Scene]:
    """A gateway's process; behind an edge for agents outside, who know one address. `edge_dies`:
    the gateway connects to the next one, and a request that is sent again gets the stored reply."""
    cluster = await ungated_cluster(place.standing, place.stack, place.new_folder)
    async with AsyncExitStack() as up:
        edge: Process | None = None
        cluster.url = ""
        if player.asks_from == "outside":
            cluster.url, edge = await up.enter_async_context(edge_process(place.folder))
        another = partial(gateway_process, place.folder, place.stack.home, cluster.url)
        first = await up.enter_async_context(another())

        async def kill(play: Play, hold: Hold) -> None:
            await up.enter_async_context(another())
            first.kill()
            if edge is not None:
                await edge.until_told("a gateway left")
            await until_told_again(play)

        async def kill_edge(play: Play, hold: Hold) -> None:
            assert edge is not None
            edge.kill()
            hold.let_go.set()
            port = int(cluster.url.rpartition(":")[2])
            _, again = await up.enter_async_context(edge_process(place.folder, port))
            await again.until_told("a gateway connected")

        yield Scene(cluster, kill_edge if edge_dies else kill)


def node_process(
    stack: StackInfo, home: Path, gateway: str
) -> contextlib.AbstractContextManager[Process]:
    """Killed at the end of the block; its sandboxes are left to the next one of this home."""
    words = ("-m", "mainspring", "worker", "sandbox", "--capacity", "2", "--leave-sandboxes")
    home.mkdir(exist_ok=True)
    return process(
        home,
        *words,
        MAINSPRING_HOME=str(home),
        MAINSPRING_NODE_ID=f"node-process-{os.getpid()}",
        MAINSPRING_DATABASE_URL=stack.database_url,
        MAINSPRING_TEMPORAL_ADDRESS=stack.temporal_address,
        MAINSPRING_GATEWAY_ADDRESSES=gateway.removeprefix("http://"),
        MAINSPRING_NODE_MIN_FREE_MEMORY_MB="0",
    )


@asynccontextmanager
async def node(place: Place, player: Player, *, keeps_reply: bool = False) -> AsyncIterator[Scene]:
    """A node's process, beside a cluster without nodes. `keeps_reply`: the gateway sent the reply
    to it, and it is killed before it passes it on."""
    await place.standing.shut_down()
    await bwrap_or_skip(place.folder / "probe")
    home = place.folder / "node"
    async with (
        without_gateway(place.stack, {}, place.folder / "model") as cluster,
        gateway_of(place.stack, cluster.workers) as cluster.url,
    ):
        start = partial(node_process, place.stack, home, cluster.url)

        async def until_found(column: Any, *where: Any) -> Any:
            async def is_found() -> bool:
                async with cluster.workers.db.statement() as connection:
                    found.append(await connection.scalar(select(column).where(*where)))
                return found[-1] is not None

            found: list[Any] = []
            await until(is_found)
            return found[-1]

        with start() as first, contextlib.ExitStack() as up:

            async def kill(play: Play, hold: Hold) -> None:
                asked, lives = ModelRequestRow, ProgramLifeRow
                if keeps_reply:
                    first.popen.send_signal(signal.SIGSTOP)
                    hold.let_go.set()
                    its = (asked.rollout_id == play.rollout, asked.number == 1)
                    await until_found(asked.delivered_life, *its)
                first.kill()
                # A function ends with its node; what it started itself is left to the next one.
                num_left = max(0, player.num_processes - 1)
                await until(lambda: len(processes_of(play.rollout)) <= num_left)
                its = lives.rollout_id == play.rollout
                key = await until_found(lives.key_hash, its) if player.asks_from else None
                up.enter_context(start())
                if player.asks_from in ("sandbox", "node") and not keeps_reply:
                    await until_told_again(play)
                if player.asks_from == "sandbox":  # its model's port has another key
                    await until_found(lives.key_hash, its, lives.key_hash != key)

            yield Scene(cluster, kill)
        assert list((home / "functions").glob("*/*")) == []


@asynccontextmanager
async def rollout_worker(place: Place, player: Player) -> AsyncIterator[Scene]:
    """Its engine is a server of this process, which makes no reply for one that left."""
    await place.standing.shut_down()
    await bwrap_or_skip(place.folder / "probe")
    home, model = place.folder / "node", place.folder / "model"
    tokenizer_of("qwen_like").save_pretrained(model)
    engine = ScriptedEngine(ChatTokenizer(model))

    async def reply(request: Request) -> JSONResponse:
        asked = await request.json()
        making = asyncio.create_task(engine.reply(asked["input_ids"], asked["rollout"]))
        while not (await asyncio.wait([making], timeout=0.1))[0]:
            if await request.is_disconnected():
                making.cancel()
                return JSONResponse(None)
        return JSONResponse(await making)

    app = Starlette(routes=[Route("/", reply, methods=["POST"])])
    async with (
        without_workers(place.stack) as workers,
        gateway_of(place.stack, workers) as url,
        serve(app) as served,
    ):
        words = ("-m", "tests.gateway.scripted_worker", str(place.stack.home), str(model))
        start = partial(process, place.folder, *words, served.url)
        with start() as first, node_process(place.stack, home, url), contextlib.ExitStack() as up:

            async def kill(play: Play, hold: Hold) -> None:
                first.kill()
                up.enter_context(start())
                await until(lambda: hold.num_held >= 2)

            yield Scene(ProgramCluster(workers, engine, url), kill)


SCENES: dict[str, Callable[[Place, Player], Any]] = {
    "process": partial(within, kill_process),
    "client": partial(within, kill_client),
    "service": partial(within, kill_service),
    "sandbox": partial(within, lose_sandbox),
    "gateway": gateway,
    "edge": partial(gateway, edge_dies=True),
    "node": node,
    "node_with_a_reply": partial(node, keeps_reply=True),
    "rollout_worker": rollout_worker,
}
