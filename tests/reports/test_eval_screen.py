"""What `mainspring eval run` prints at its end: the result first, and what to do about the rest."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from test_export_formats import ENDS, play
from typer.testing import CliRunner, Result

from cli.main import app
from cli.operations.machine.embedded_stack import StackInfo
from infra.db.database import Database
from infra.db.rollouts import groups
from infra.db.rollouts.groups import NewRollout
from infra.db.runs import campaigns
from infra.db.tasks import selections, tasks
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.errors import WorkFailed
from mainspring.ids import CampaignId, TaskId, rollout_id, run_group_id
from mainspring.status import CampaignStatus, GroupKind, Verdict
from mainspring.tasks.swe_task import SweTask

ENGINE = "http://127.0.0.1:9"
CLEAN = "clean"
"""The evaluation with prices."""


@pytest.fixture
async def db(stack: StackInfo) -> AsyncIterator[Database]:
    """The stack's own: the command asks its Temporal, too."""
    async with Database.open(stack.database_url, pool_size=2) as database:
        yield database


async def finished(db: Database, name: CampaignId, ends: list[tuple[str, Verdict | None]]) -> None:
    """An evaluation that ended so, as the command below would have made it."""
    ids = list(dict.fromkeys(TaskId(f"{name}:{task}") for task, _ in ends))
    common = {"source": f"shown-{name}", "split": "test", "issue": "Fix.", "test_command": "true"}
    files = {"a.py": "x = 1\n"}
    made = [SweTask.model_validate({"id": id, "files": files, **common}) for id in ids]
    await tasks.put_tasks(db, made)
    policy = {"model": "m1", "api": "openai", "temperature": 1.0, "engines": [ENGINE]}
    prices = {"m1": {"input": 1000.0, "output": 10_000.0, "cached_input": 100.0}}
    config = EvaluationConfig.model_validate(
        {
            "name": name,
            "policy": policy,
            "prices": prices if name == CLEAN else {},
            "tasks": {"source": f"shown-{name}"},
            "split": "test",
            "samples": 2,
        }
    )
    chosen = [selections.Selected(id, "test", place, None) for place, id in enumerate(ids)]
    await campaigns.create(db, config, chosen)
    group = run_group_id(name, 0)
    rows = [
        NewRollout(rollout_id(group, number), TaskId(f"{name}:{task}"), number, 1.0)
        for number, (task, _) in enumerate(ends)
    ]
    await groups.create_group(
        db, group, name, GroupKind.EVAL, index=0, policy_version=0, split="test", rollouts=rows
    )
    for number, (_, verdict) in enumerate(ends):
        await play(db, rollout_id(group, number), verdict, in_tokens=False)
    await groups.finish_group(db, group)
    await campaigns.set_status(db, name, CampaignStatus.FINISHED)


async def evaluate(stack: StackInfo, name: str, output: Path, *more: str) -> Result:
    arguments = ["eval", "run", "--source", f"shown-{name}", "--split", "test", "--n", "2"]
    arguments += ["--model", "m1", "--api", "openai", "--base-url", ENGINE, "--name", name]
    arguments += ["--no-workers", "--home", str(stack.home), "--output", str(output), *more]
    return await asyncio.to_thread(CliRunner().invoke, app, arguments)


async def test_masked_rollouts_end_the_command_with_a_failure(
    db: Database, stack: StackInfo, tmp_path: Path
) -> None:
    await finished(db, CampaignId("shown"), ENDS)
    ended = await evaluate(stack, "shown", tmp_path)
    first, *rest = ended.output.splitlines()
    assert first == "eval shown: 3 of 5 resolved, 50 % (13-87 %)"
    shown = "\n".join(rest)
    assert "pass@2     100 %" in shown and "None" not in shown
    assert "dollars" not in shown
    assert "1 of 6 rollouts could not be scored" in shown
    assert "r000000/003  shown:repo__lib-2  (no patch)" in shown
    assert "r000000/004  shown:repo/lib:3  (masked)" in shown
    assert "fault      the node died" in shown
    assert "next       `mainspring rollout show shown/r000000/003`" in shown
    assert isinstance(ended.exception, WorkFailed) and ended.exception.exit_code == 4
    assert "--retry" in ended.exception.remedy and "--masked" in ended.exception.remedy

    as_json = await evaluate(stack, "shown", tmp_path, "--json")
    assert isinstance(as_json.exception, WorkFailed)
    assert json.loads(as_json.stdout)["errors"] == 1


async def test_a_clean_evaluation(db: Database, stack: StackInfo, tmp_path: Path) -> None:
    ends = [(f"repo__lib-{number}", Verdict.RESOLVED) for number in (1, 2)]
    await finished(db, CampaignId(CLEAN), [*ends])
    prices = ["m1.input=1000", "m1.output=1e4", "m1.cached_input=100.0"]
    options = [word for price in prices for word in ("--set", f"prices.{price}")]
    ended = await evaluate(stack, CLEAN, tmp_path, *options)
    if ended.exception is not None:
        raise ended.exception
    assert ended.output.startswith("eval clean: 2 of 2 resolved, 100 % (34-100 %)")
    assert "not resolved" not in ended.output and "masked" not in ended.output
    assert f"files      {tmp_path}" in ended.output
    # Calls of 10, 11 and 12 prompt tokens and 4 of reply, for a thousandth, a tenth of it where the
    # call before held them (all 11 and 12 of them), and a hundredth of a dollar.
    each = 10 / 1000 + 23 / 10_000 + 12 / 100
    assert "dollars    $0.26 in total, $0.13 a rollout, $0.13 a solved task" in ended.output
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["cost"] == {
        "total": pytest.approx(2 * each),
        "per_rollout": pytest.approx(each),
        "per_solved_task": pytest.approx(each),
    }
    [first, _] = map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())
    assert first["cost"] == pytest.approx(each)
    shown = await asyncio.to_thread(
        CliRunner().invoke, app, ["rollout", "show", first["rollout"], "--home", str(stack.home)]
    )
    assert "cost       $0.13" in shown.output.splitlines()
    other = await evaluate(stack, CLEAN, tmp_path, *options, "--set", "prices.m1.input=2.0")
    assert "prices.m1.input: 1000.0 -> 2.0" in str(other.exception)
