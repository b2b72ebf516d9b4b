"""`mainspring eval run` with programs and an OpenAI-compatible endpoint, by the command: official
clients in sandboxes, and processes that are killed while the endpoint replies."""

import asyncio
import importlib.metadata
import json
import shutil
import subprocess
import sys
import threading
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import psutil
import pytest
from cluster import bwrap_or_skip
from packaging.requirements import Requirement
from program_checks import EDIT
from program_cluster import own_program
from scripted import SUBMIT, bash

from cli.operations.machine.embedded_stack import StackInfo
from infra.bundles.store import MANIFEST, BundleManifest, digest
from infra.db.database import Database
from infra.db.programs import model_requests
from infra.db.rollouts import rollouts
from infra.db.tasks import tasks
from mainspring.ids import CampaignId, RolloutId, TaskId
from mainspring.programs.recipes import recipe_of
from mainspring.tasks.swe_task import SweTask
from reports import one_rollout
from tests.chat_endpoint import Endpoint, Messages, Said, calling, chat_endpoint
from tests.processes import words
from tests.waiting import until

SOURCE = "programs-at-an-endpoint"
AGENT = Path(__file__).with_name("sdk_agent.py").read_text()
CLIENTS = ("chat", "responses", "messages")
EVALUATION = """
[tasks]
source = "{source}"
unverified = "use"
[agent]
kind = "{kind}"
[agent.options]
{options}
[policy]
api = "openai"
model = "m1"
engines = ["{url}"]
max_context = 8000
max_new_tokens = 1000
[run]
split = "test"
[sandbox]
memory_mb = 2048
"""


def task(name: str, issue: str, **files: str) -> SweTask:
    return SweTask(
        id=TaskId(f"{SOURCE}-{name}"),
        source=f"{SOURCE}-{name.partition('.')[0]}",
        split="test",
        issue=issue,
        files={"calc.py": "def add(a, b):\n    return a - b\n", **files},
        tests={"hidden_test.py": "from calc import add\nassert add(2, 3) == 5\n"},
        test_command="python3 hidden_test.py",
    )


def by_turn(messages: Messages) -> Said:
    commands = ("cat calc.py", EDIT)
    turn = sum(message["role"] == "tool" for message in messages)
    if turn == len(commands) or messages[0]["content"] == "Reply with: ok":
        return "Done."
    return calling("bash", json.dumps({"command": commands[turn]}), reasoning_content="hm")


def bundle_of_clients(folder: Path) -> None:
    """As `mainspring agents add openai-agents` lays it out, of packages that are here."""
    recipe = recipe_of("openai-agents", None)
    bundle = folder / recipe.bundle
    for path in packages("openai", "anthropic"):
        source = path.locate()
        target = bundle / "site" / path
        if source.is_file() and ".." not in path.parts:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    program = bundle / "bin" / "python-agents"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\nPYTHONPATH=$(dirname "$(dirname "$0")")/site exec python3 "$@"\n'
    )
    program.chmod(0o755)
    manifest = BundleManifest(
        name=recipe.name,
        version=recipe.version,
        packages=recipe.pip,
        programs=("python-agents",),
        sha256=digest(bundle),
        machine="x86_64",
    )
    (bundle / MANIFEST).write_text(manifest.model_dump_json())


def packages(*names: str) -> list[importlib.metadata.PackagePath]:
    """Files of these packages and of all that they need."""
    left, seen, found = list(names), set[str](), list[importlib.metadata.PackagePath]()
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except PackageNotFoundError:
            continue
        found += distribution.files or ()
        needs = map(Requirement, distribution.requires or ())
        left += [each.name for each in needs if not each.marker or each.marker.evaluate()]
    return found


class Evaluation:
    """The command, in a process of its own."""

    def __init__(self, stack: StackInfo, name: str, output: Path, file: str) -> None:
        self.name, self._output = name, output
        output.mkdir()
        path = output / "eval.toml"
        path.write_text(file)
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "mainspring", "eval", "run", str(path), "--json"),
                *("--home", str(stack.home), "--name", name, "--output", str(output / "files")),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    async def summary(self) -> dict[str, Any]:
        printed, said = await asyncio.to_thread(self.process.communicate)
        assert self.process.returncode == 0, said
        return json.loads(printed)

    def worker(self, kind: str) -> psutil.Process:
        [found] = [
            each
            for each in psutil.Process(self.process.pid).children(recursive=True)
            if words(each)[-5:][:2] == ["worker", kind] or f"worker {kind}" in " ".join(words(each))
        ]
        return found


@pytest.fixture
async def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await bwrap_or_skip(tmp_path / "probe")
    monkeypatch.setenv("MAINSPRING_NODE_ID", "eval-programs")
    monkeypatch.setenv("MAINSPRING_NODE_MIN_FREE_MEMORY_MB", "0")


async def test_official_clients_resolve_their_tasks(
    stack: StackInfo, machine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = tmp_path / "agents"
    await asyncio.to_thread(bundle_of_clients, agents)
    monkeypatch.setenv("MAINSPRING_AGENTS_DIR", str(agents))
    made = [task(f"sdk.{each}", f"add subtracts, by {each}", **{"a.py": AGENT}) for each in CLIENTS]
    async with Database.open(stack.database_url) as db:
        await tasks.put_tasks(db, made)
        with chat_endpoint() as endpoint:
            endpoint.reply = by_turn
            file = EVALUATION.format(
                source=f"{SOURCE}-sdk",
                kind="openai-agents",
                options='script = "/testbed/a.py"',
                url=endpoint.url,
            )
            evaluation = Evaluation(stack, "eval-sdk", tmp_path / "sdk", file)
            summary = await evaluation.summary()
        assert (summary["total"], summary["resolved"]) == (3, 3), await told(db, evaluation.name)
    assert len(endpoint.asked) == 1 + 3 * 3, "the check, then three calls of each"
    assert {len(body.get("tools", ())) for body in endpoint.asked[1:]} == {1}


def for_either(messages: Messages) -> Said:
    """A program's replies call a tool, those of the agent `bash` have a block."""
    if "THOUGHT" not in str(messages[0]["content"]):
        return by_turn(messages)
    turn = sum(message["role"] == "assistant" for message in messages)
    return (bash("cat calc.py"), bash(EDIT), SUBMIT)[turn]


async def test_an_agent_and_a_program_play_in_one_evaluation(
    stack: StackInfo, machine: None, tmp_path: Path
) -> None:
    """The command starts a gateway for a program that only a section has."""
    ours = task("mixed", "add subtracts")
    theirs = task("mixed.coder", "add subtracts").model_copy(update={"agent_name": "coder"})
    async with Database.open(stack.database_url) as db:
        await tasks.put_tasks(db, [ours, theirs])
        with chat_endpoint() as endpoint:
            endpoint.reply = for_either
            file = EVALUATION.format(
                source=f"{SOURCE}-mixed", kind="bash", options="", url=endpoint.url
            )
            command = json.dumps(own_program()["options"]["command"])
            file += f'[agents.coder]\nkind = "command"\noptions.command = {command}\n'
            evaluation = Evaluation(stack, "eval-mixed", tmp_path / "mixed", file)
            summary = await evaluation.summary()
        assert (summary["total"], summary["resolved"]) == (2, 2), await told(db, evaluation.name)
        played = await rollouts.list_rollouts(db, campaign=CampaignId(evaluation.name))
        views = {each.task: await one_rollout.read(db, each.id) for each in played}
        assert {name: view.agent for name, view in views.items()} == {
            ours.id: "bash",
            theirs.id: "coder",
        }
        assert {view.program is None for view in views.values()} == {True, False}


async def told(db: Database, campaign: str) -> list[Any]:
    """For a test that fails."""
    views = [
        await one_rollout.read(db, each.id)
        for each in await rollouts.list_rollouts(db, campaign=CampaignId(campaign))
    ]
    return [(view.record.fault, view.program and view.program.lives) for view in views]


class HeldEndpoint:
    """Holds its reply of the second turn the first time that it is asked for it."""

    def __init__(self, endpoint: Endpoint) -> None:
        endpoint.reply = self
        self.reached = threading.Event()
        self.let_go = threading.Event()

    def __call__(self, messages: Messages) -> Said:
        if sum(message["role"] == "tool" for message in messages) == 1 and not self.let_go.is_set():
            self.reached.set()
            assert self.let_go.wait(120)
        return by_turn(messages)


@pytest.mark.parametrize("kind", ["gateway", "rollout"])
async def test_a_process_that_is_killed_while_the_endpoint_replies(
    stack: StackInfo, machine: None, tmp_path: Path, kind: str
) -> None:
    async with Database.open(stack.database_url) as db:
        await tasks.put_tasks(db, [task(f"killed{kind}", "add subtracts")])
        with chat_endpoint() as endpoint:
            held = HeldEndpoint(endpoint)
            options = own_program()["options"]["command"]
            file = EVALUATION.format(
                source=f"{SOURCE}-killed{kind}",
                kind="command",
                options=f"command = {json.dumps(options)}",
                url=endpoint.url,
            )
            evaluation = Evaluation(stack, f"eval-{kind}", tmp_path / kind, file)
            try:
                await until(held.reached.is_set)
                evaluation.worker(kind).kill()
                if kind == "rollout":
                    await until(lambda: len(endpoint.asked) == 1 + 3)  # asked again
                held.let_go.set()
                summary = await evaluation.summary()
            finally:
                held.let_go.set()
                evaluation.process.kill()
        assert summary["resolved"] == 1, await told(db, evaluation.name)
        [played] = await rollouts.list_rollouts(db, campaign=CampaignId(evaluation.name))
        again = 1 if kind == "rollout" else 0
        assert len(endpoint.asked) == 1 + 3 + again
        view = await one_rollout.read(db, RolloutId(played.id))
        assert view.program is not None and view.program.num_calls == 3
        assert view.program.num_sent_again == again
        known = await model_requests.history(db, played.id, 0)
        assert [each.num_sent for each in known] == [1, 1 + again, 1]
