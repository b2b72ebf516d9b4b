"""What the pages tell to type: run as printed, in order, on a real stack; the rest is parsed.

A block of shell commands in one of RUN_PAGES says in a comment before it whether it is run. The
endpoint that the pages name answers from this process; its port is put into the commands, nothing
else is changed.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import click
import pytest
import typer.main

from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.sandbox.protocol import BackendUnavailable
from mainspring.status import FaultKind, RolloutPhase, StopReason, Verdict
from tests.chat_endpoint import chat_endpoint
from workflows import search

ROOT = Path(__file__).parents[1]
RUN_PAGES = ("README.md", "docs/getting-started.md", "examples/own-task/README.md")
PAGES = (
    "README.md",
    *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/*.md")),
    *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("examples/**/*.md")),
)
ENDPOINT = "http://127.0.0.1:8000"
_BLOCK = re.compile(r"(?:<!-- ([^>]*) -->\n)?```sh\n(.*?)```", re.DOTALL)
_QUERY = re.compile(r"\b(\w+) = \"([^\"]+)\"")
_VALUES: dict[str, type[StrEnum]] = {
    "RolloutPhase": RolloutPhase,
    "ExitStatus": StopReason,
    "Verdict": Verdict,
    "Fault": FaultKind,
}
SUBMIT = "THOUGHT: done\n\n```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```"


@dataclass(frozen=True, slots=True)
class Block:
    mark: str
    text: str

    @property
    def is_run(self) -> bool:
        return self.mark == "run"


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text()
    return [Block(found[1] or "", found[2]) for found in _BLOCK.finditer(text)]


def commands(block: Block) -> Iterator[list[str]]:
    """The words after each `mainspring`, wherever its program lies."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        for position, word in enumerate(words):
            before = words[:position]
            is_program = word.rpartition("/")[2] == "mainspring"
            if is_program and all("=" in each or each == "sudo" for each in before):
                yield words[position + 1 :]
                break
            if word == "tools" and "compose" in before:
                yield words[position + 1 :]
                break


@pytest.mark.parametrize("page", PAGES)
def test_every_command_line_has_options_that_exist(page: str) -> None:
    from cli.main import app

    for block in blocks(page):
        for words in commands(block):
            command: Any = typer.main.get_command(app)
            arguments = list(words)
            while hasattr(command, "commands"):
                assert arguments, f"{page}: mainspring {' '.join(words)}"
                word = arguments.pop(0)
                assert word in command.commands, f"{page}: mainspring {' '.join(words)}"
                command = command.commands[word]
            try:
                command.make_context(words[0], arguments)
            except click.ClickException as error:
                pytest.fail(f"{page}: mainspring {' '.join(words)}: {error.format_message()}")


@pytest.mark.parametrize("page", RUN_PAGES)
def test_every_block_says_whether_it_is_run(page: str) -> None:
    for block in blocks(page):
        said = block.mark in ("run", "test-command") or block.mark.startswith("not run: ")
        assert said, f"{page}: no mark before:\n{block.text}"


@pytest.mark.parametrize("page", PAGES)
def test_searches_use_attributes_and_values_that_exist(page: str) -> None:
    keys = {value.name for value in vars(search).values() if hasattr(value, "indexed_value_type")}
    for name, value in _QUERY.findall((ROOT / page).read_text()):
        if name in _VALUES:
            assert value in tuple(_VALUES[name]), f"{page}: {name} = {value!r}"
        elif name[0].isupper() and not name.isupper():
            assert name in keys | {"WorkflowType", "ExecutionStatus"}, f"{page}: {name}"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not pytest's: others may pass through this one, as root's Postgres runs as nobody inside."""
    made = Path(tempfile.mkdtemp(prefix="mainspring-snippets-"))
    made.chmod(0o711)
    yield made
    data = made / ".mainspring" / "postgres"
    if data.is_symlink():
        shutil.rmtree(data.resolve())
    shutil.rmtree(made)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", RUN_PAGES)
async def test_the_page_runs_as_printed(page: str, folder: Path, tmp_path: Path) -> None:
    try:
        await BwrapBackend(tmp_path / "probe").probe()
    except BackendUnavailable as error:
        pytest.skip(error.message)
    (folder / "examples").symlink_to(ROOT / "examples")
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("MAINSPRING_")},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "MAINSPRING_NODE_ID": "snippets",
        # The machine that runs the tests may be short of memory: that is not what they test.
        "MAINSPRING_NODE_MIN_FREE_MEMORY_MB": "0",
    }
    with chat_endpoint() as endpoint:
        endpoint.reply = lambda messages: SUBMIT
        url = endpoint.url.removesuffix("/v1")
        try:
            for block in blocks(page):
                if block.is_run:
                    _run(block.text.replace(ENDPOINT, url), folder, environment)
        finally:
            _run("mainspring down", folder, environment)
    assert bool(endpoint.asked) == (ENDPOINT in (ROOT / page).read_text())


def _run(text: str, folder: Path, environment: dict[str, str]) -> None:
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, f"{text}\n{ended.stdout}\n{ended.stderr}"
