"""Rows of verl by the commands: imported, evaluated with an endpoint, or refused as a whole."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cli.operations.machine.embedded_stack import StackInfo
from infra.db.database import Database
from infra.db.rollouts import rollouts
from infra.db.tasks import tasks
from mainspring.ids import CampaignId
from mainspring.status import Verdict
from tests.chat_endpoint import Messages, chat_endpoint

pyarrow = pytest.importorskip("pyarrow")
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "verl-rows"


async def told(*arguments: str | Path) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *map(str, arguments)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    printed, said = await process.communicate()
    assert process.returncode is not None
    return process.returncode, printed.decode(), said.decode()


def reply(messages: Messages) -> str:
    """Right for an even number of pairs alone."""
    if "socks" not in messages[-1]["content"]:  # the command tries the endpoint
        return "ok"
    assert [each["role"] for each in messages] == ["user"]
    pairs, price = map(int, re.findall(r"\d+", messages[0]["content"]))
    return f"{pairs} x {price}.\n#### {pairs * price + pairs % 2}"


async def test_rows_of_verl_are_imported_and_evaluated(
    stack: StackInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_NODE_ID", "verl-evaluation")
    monkeypatch.setenv("MAINSPRING_NODE_MIN_FREE_MEMORY_MB", "0")
    file, home = tmp_path / "sums.parquet", ("--home", stack.home)
    assert (await told(EXAMPLE / "write_rows.py", file))[0] == 0
    code, printed, said = await told(
        *("-m", "mainspring", "tasks", "import", file, "--name", "sums", *home)
    )
    assert (code, "8 new" in printed) == (0, True), said
    with chat_endpoint() as endpoint:
        endpoint.reply = reply
        run = ("-m", "mainspring", "eval", "run", EXAMPLE / "eval.toml", "--name", "sums-eval")
        model = ("--base-url", endpoint.url, "--model", "m", "--output", tmp_path / "out")
        # An agent that no section has is refused before anything is played.
        other = tmp_path / "other.toml"
        other.write_text((EXAMPLE / "eval.toml").read_text().replace("single_turn", "tool"))
        code, _, said = await told(*run[:4], other, "--name", "refused", *model, *home)
        assert code == 2 and "single_turn_agent" in said, said
        assert "socks" not in str(endpoint.asked)
        code, printed, said = await told(*run, *model, *home, "--json")
        assert code == 0, said
    async with Database.open(stack.database_url) as db:
        records = await rollouts.list_rollouts(db, campaign=CampaignId("sums-eval"))
        verdicts = {}
        for record in records:
            verdicts[record.task] = record.verdict
            output = await rollouts.get_grade_output(db, record.id, record.epoch)
            assert output is not None and "found by ####" in output
    assert verdicts == {
        "example-sums-test-6": Verdict.NOT_RESOLVED,
        "example-sums-test-7": Verdict.RESOLVED,
    }


async def test_a_file_with_one_bad_row_leaves_nothing(stack: StackInfo, tmp_path: Path) -> None:
    import pyarrow.parquet

    good = tmp_path / "good.parquet"
    assert (await told(EXAMPLE / "write_rows.py", good))[0] == 0
    rows = pyarrow.parquet.read_table(good).to_pylist()
    rows[-1]["reward_model"]["style"] = "vote"
    bad, none, cut = (tmp_path / f"{name}.parquet" for name in ("bad", "none", "cut"))
    table = pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, bad)
    pyarrow.parquet.write_table(table.slice(0, 0), none)
    cut.write_bytes(good.read_bytes()[:-40])
    text = tmp_path / "text.parquet"
    text.write_text(json.dumps(rows))
    for file, problem in (
        (bad, f"{bad}:8: reward_model.style is 'vote', expected 'rule' or 'model'"),
        (none, f"{none} has no rows"),
        (cut, f"{cut} cannot be read as parquet"),
        (text, f"{text} cannot be read as parquet"),
    ):
        command = ("-m", "mainspring", "tasks", "import", file, "--name", "refused-sums")
        code, _, said = await told(*command, "--home", stack.home)
        assert code == 2 and problem in " ".join(said.split()), said
        assert "Traceback" not in said
    async with Database.open(stack.database_url) as db:
        assert await tasks.task_ids(db, "refused-sums", "train") == []
