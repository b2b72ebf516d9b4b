"""One line an event, whichever library wrote it; a worker's first line names its services."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.operations.machine.embedded_stack import StackInfo

PROGRAM = """
import asyncio, logging, os, sys, uuid
from datetime import timedelta
from pathlib import Path
import structlog
from pydantic import BaseModel
from temporalio import activity, workflow
from temporalio.worker import UnsandboxedWorkflowRunner, Worker
from infra.log_setup import set_up
from infra.temporal.connection import connect
from mainspring.config.settings import load_settings

class Ask(BaseModel):
    rollout: str = "c/g000000/001"
    turn: int = 3

@activity.defn
async def act(ask: Ask) -> None:
    activity.logger.info("from the activity's logger")
    structlog.get_logger().info("from structlog", detail="x")
    logging.getLogger("some.library").warning("from a library")
    try:
        raise ValueError("two\\nlines")
    except ValueError:
        logging.getLogger("some.library").exception("with a traceback")

@workflow.defn
class Flow:
    @workflow.run
    async def run(self) -> None:
        workflow.logger.info("from the workflow's logger")
        await workflow.execute_activity(act, Ask(), start_to_close_timeout=timedelta(seconds=60))

async def main():
    settings = load_settings(Path(sys.argv[1]))
    set_up(settings.log_format)
    client = await connect(settings)
    queue = uuid.uuid4().hex
    async with Worker(client, task_queue=queue, workflows=[Flow], activities=[act],
                      workflow_runner=UnsandboxedWorkflowRunner()):
        await client.execute_workflow(Flow.run, id="flow-" + queue, task_queue=queue)
    structlog.get_logger().info("outside")

asyncio.run(main())
# As the command line ends: threads of Temporal's SDK abort the interpreter's own shutdown.
sys.stderr.flush()
os._exit(0)
"""


def run(stack: StackInfo, **environment: str) -> subprocess.CompletedProcess[str]:
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(stack.home)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=120,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout == "", "standard output is for a command's result"
    return found


async def test_every_source_writes_json_lines_with_the_fields_of_its_activity(
    stack: StackInfo,
) -> None:
    found = await asyncio.to_thread(run, stack)
    lines = list(map(json.loads, found.stderr.splitlines()))
    # The SDK's own words about the worker may change.
    events = {each["event"]: each for each in lines if not each["event"].startswith("Beginning")}
    assert list(events) == [
        "from the workflow's logger",
        "from the activity's logger",
        "from structlog",
        "from a library",
        "with a traceback",
        "outside",
    ]
    for each in events.values():
        assert list(each)[:3] == ["timestamp", "level", "event"]
        assert each["timestamp"].endswith("Z")
    assert events["from the workflow's logger"]["workflow"].startswith("flow-")
    for event in list(events)[1:5]:
        assert (events[event]["rollout"], events[event]["turn"]) == ("c/g000000/001", 3)
    assert "ValueError: two\nlines" in events["with a traceback"]["exception"]
    assert "rollout" not in events["outside"]


async def test_text_for_people_on_request(stack: StackInfo) -> None:
    found = await asyncio.to_thread(run, stack, MAINSPRING_LOG_FORMAT="text")
    [line] = [each for each in found.stderr.splitlines() if "from structlog" in each]
    assert "[info" in line and "rollout=c/g000000/001" in line and "turn=3" in line
    assert "\x1b" not in found.stderr


@pytest.mark.parametrize("role", ["rollout", "sandbox"])
async def test_a_workers_first_line_names_its_services(
    stack: StackInfo, role: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mainspring", "worker", role, "--home", str(stack.home)),
            stdout=file,
            stderr=file,
            env={**os.environ, "MAINSPRING_NODE_ID": "first-line"},
        )
    try:
        async with asyncio.timeout(120):
            while not log.read_text().endswith("\n"):
                assert worker.returncode is None, log.read_text()
                await asyncio.sleep(0.1)
    finally:
        worker.terminate()
        await worker.wait()
    first = json.loads(log.read_text().splitlines()[0])
    assert first["event"] == {"rollout": "rollout worker is up", "sandbox": "node is up"}[role]
    assert first["queue"] == {"rollout": "rollout", "sandbox": "sandbox/first-line"}[role]
    assert (first["temporal"], first["namespace"]) == (
        stack.temporal_address,
        stack.temporal_namespace,
    )
    assert first["database"] == stack.database_url.rpartition("@")[2]
    assert first["ui"].startswith(stack.temporal_ui)
    assert stack.database_url.split(":")[2].split("@")[0] not in log.read_text()
