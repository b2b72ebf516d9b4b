"""A node that is a process of its own, which a test can kill, beside a cluster without nodes."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

from program_cluster import ProgramCluster, gateway_of, without_gateway

from cli.operations.machine.embedded_stack import StackInfo
from mainspring.ids import NodeId

NODE = NodeId(f"program-node-process-{os.getpid()}")
StartNode = Callable[[], AbstractAsyncContextManager[asyncio.subprocess.Process]]


@asynccontextmanager
async def without_node(
    stack: StackInfo, home: Path
) -> AsyncIterator[tuple[ProgramCluster, StartNode]]:
    """Rollout worker and gateway, and what starts a process of the node, whose state is in the new
    folder `home`."""
    home.mkdir()
    async with (
        without_gateway(stack, {}, home.parent / "model") as cluster,
        gateway_of(stack, cluster.workers) as url,
    ):
        yield cluster, partial(_node_process, stack, home, url.removeprefix("http://"))


@asynccontextmanager
async def _node_process(
    stack: StackInfo, home: Path, gateway: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Killed at the end of the block; its sandboxes are left to the next one."""
    environment = {
        **os.environ,
        "MAINSPRING_HOME": str(home),
        "MAINSPRING_NODE_ID": NODE,
        "MAINSPRING_DATABASE_URL": stack.database_url,
        "MAINSPRING_TEMPORAL_ADDRESS": stack.temporal_address,
        "MAINSPRING_GATEWAY_ADDRESSES": gateway,
        "MAINSPRING_NODE_MIN_FREE_MEMORY_MB": "0",
    }
    words = ("-m", "mainspring", "worker", "sandbox", "--capacity", "2", "--leave-sandboxes")
    with (home / "node.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
