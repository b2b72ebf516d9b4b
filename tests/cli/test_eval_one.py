"""`mainspring eval one`: real command, sandbox, store; the endpoint waits for what is shown."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cluster import bwrap_or_skip
from program_checks import EDIT
from scripted import SUBMIT, bash
from typer.testing import CliRunner, Result

from cli.main import app
from cli.operations.machine.embedded_stack import StackInfo
from cli.operations.runs.turn_watch import OUTPUT_LINES, shortened
from infra.db.database import Database
from infra.db.fence import UnknownId
from infra.db.rollouts import rollouts
from infra.db.runs import campaigns
from infra.db.tasks import selections, tasks
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.errors import UsageError
from mainspring.ids import CampaignId, TaskId
from mainspring.status import Verdict
from mainspring.tasks.swe_task import SweTask
from tests.chat_endpoint import Messages, chat_endpoint

SOURCE = "one-of-many"
LOOK = "cat calc.py\nseq 1 100\nprintf '\\033[2Jx%.0s' $(seq 1 200)"
REPLIES = (bash(LOOK), bash(EDIT), SUBMIT)
FILE = """
name = "the-whole-evaluation"
[run]
split = "test"
slice = "1:2"
limit = 1
"""


def task(number: int) -> SweTask:
    return SweTask(
        id=TaskId(f"{SOURCE}.{number}"),
        source=SOURCE,
        split="test",
        issue="add is wrong",
        files={"calc.py": "def add(a, b):\n    return a - b\n"},
        tests={"hidden_test.py": "from calc import add\nassert add(2, 3) == 5\n"},
        test_command="python3 hidden_test.py",
    )


async def in_this_process(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, app, ["eval", "one", *arguments])


async def test_each_turn_is_shown_as_it_is_taken(
    stack: StackInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bwrap_or_skip(tmp_path)
    monkeypatch.setenv("MAINSPRING_NODE_ID", "eval-one")
    monkeypatch.setenv("MAINSPRING_NODE_MIN_FREE_MEMORY_MB", "0")
    monkeypatch.setenv("COLUMNS", "80")
    is_seen = threading.Event()

    def reply(messages: Messages) -> str:
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn == 1:  # nothing more comes before the first turn is on the screen
            assert is_seen.wait(120)
        return REPLIES[turn]

    async with Database.open(stack.database_url) as db:
        await tasks.put_tasks(db, [task(number) for number in range(3)])
        file, output = tmp_path / "eval.toml", tmp_path / "output"
        file.write_text(FILE)
        with chat_endpoint() as endpoint:
            endpoint.reply = reply
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "mainspring", "eval", "one", task(2).id, str(file)),
                *("--follow", "--model", "m1", "--api", "openai", "--base-url", endpoint.url),
                *("--agent", "bash", "--home", str(stack.home), "--output", str(output)),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            assert process.stdout is not None
            lines: list[str] = []
            async for line in process.stdout:
                lines.append(line.decode().rstrip("\n"))
                if lines[-1].startswith("[exit 0"):
                    is_seen.set()
            _, said = await process.communicate()
        assert process.returncode == 0, said.decode()
        shown = "\n".join(lines)
        for number in (1, 2, 3):
            assert any(line.startswith(f"turn {number} (") for line in lines), shown
        # The output's beginning and end; its escape sequences steer nothing.
        assert "def add(a, b):" in lines and "100" in lines and "50" not in lines
        assert "lines more ...]" in shown and "\x1b" not in shown
        begin = next(place for place, line in enumerate(lines) if "begins" in line)
        turns = lines[begin + 1 : lines.index("verdict    resolved")]
        assert max(len(line) for line in turns if not line.startswith("blocked: ")) <= 80, turns
        end = "\n".join(lines[lines.index("verdict    resolved") :])
        assert "patch      " in end and " bytes, 1 file" in end
        assert "ended by   submitted by the agent, after 3 turns" in end
        assert "cost       3 calls, " in end and " prompt tokens, " in end
        name = next(
            each.id for each in await campaigns.list_all(db) if each.id.startswith("eval-one-of")
        )
        # An ordinary evaluation of this task alone, whatever the file chooses.
        config = (await campaigns.get(db, name)).config
        assert isinstance(config, EvaluationConfig) and not config.slice
        assert await selections.task_ids(db, config, "test") == [task(2).id]
        [record] = await rollouts.list_rollouts(db, campaign=CampaignId(name))
        assert record.verdict is Verdict.RESOLVED


async def test_what_is_no_task_is_refused(stack: StackInfo) -> None:
    async with Database.open(stack.database_url) as db:
        await tasks.put_tasks(db, [task(0)])
        home = ["--home", str(stack.home), "--no-workers"]
        engine = ["--model", "m", "--api", "openai", "--base-url", "http://127.0.0.1:9"]
        ended = await in_this_process(f"{SOURCE}-0", *engine, *home)
        assert isinstance(ended.exception, UnknownId)
        assert f"did you mean {SOURCE}.0" in ended.exception.remedy
        for arguments, told in (
            (["--source", "other"], f"is in the source '{SOURCE}', not in 'other'"),
            (["--split", "dev"], "is in the split 'test', not in 'dev'"),
            (["--follow", "--json"], "--follow and --json exclude each other"),
            (["--agent", "nope"], "no agent is called 'nope'"),
            (["--temperature", "hot"], "eval one: --temperature: must be a number"),
        ):
            ended = await in_this_process(task(0).id, *engine, *home, *arguments)
            assert isinstance(ended.exception, UsageError) and told in ended.exception.message
        assert not [
            each
            for each in await campaigns.list_all(db)
            if each.id.startswith("eval-one-of-many-0")
        ]


def test_long_outputs_keep_their_ends() -> None:
    lines = [str(number) for number in range(50)]
    cut = shortened(lines, OUTPUT_LINES)
    assert len(cut) == OUTPUT_LINES + 1 and cut[0] == "0" and cut[-1] == "49"
    assert cut[6] == "[... 38 lines more ...]"
    assert shortened(lines[:OUTPUT_LINES], OUTPUT_LINES) == lines[:OUTPUT_LINES]
