"""What the stack's tests look at: processes of a home folder, and what its services still hold."""

import uuid
from pathlib import Path

import asyncpg
import psutil
from temporalio.client import Client

from tests.processes import running, with_children


def processes_of(home: Path) -> list[psutil.Process]:
    """Servers whose command line names the home folder, and their children."""

    def is_server(process: psutil.Process) -> bool:
        named = any(str(home) in word for word in process.cmdline())
        return named and process.name() in ("postgres", "temporal")

    return with_children(running(is_server))


async def leave_mark(database_url: str, temporal_address: str) -> str:
    """A committed row and a started workflow, by this name."""
    mark = uuid.uuid4().hex
    connection = await asyncpg.connect(database_url)
    await connection.execute("SET synchronous_commit = on")
    await connection.execute("CREATE TABLE IF NOT EXISTS mark (word text)")
    await connection.execute("INSERT INTO mark VALUES ($1)", mark)
    await connection.close()
    client = await Client.connect(temporal_address)
    await client.start_workflow("Nothing", id=mark, task_queue="nobody-polls")
    return mark


async def check_mark(database_url: str, temporal_address: str, mark: str) -> None:
    connection = await asyncpg.connect(database_url)
    assert await connection.fetchval("SELECT count(*) FROM mark WHERE word = $1", mark) == 1
    await connection.close()
    client = await Client.connect(temporal_address)
    described = await client.get_workflow_handle(mark).describe()
    assert described.workflow_type == "Nothing"
