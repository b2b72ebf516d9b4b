"""A stored evaluation, written out in every format and read again."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from cli.rollout import rollout as command
from infra.db.database import Database
from infra.db.rollouts import groups, rollouts, turns
from infra.db.rollouts.groups import NewRollout
from infra.db.runs import campaigns
from infra.db.tasks import selections, tasks
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.tasks import TasksConfig
from mainspring.errors import UsageError
from mainspring.ids import CampaignId, RolloutId, TaskId, rollout_id, run_group_id
from mainspring.status import GroupKind, StopReason, Suspicion, Verdict
from mainspring.tasks.criterion import GradeReport
from mainspring.tasks.swe_task import SweTask
from mainspring.trajectories.samples import samples_of
from mainspring.trajectories.turns import Call, Execution, VersionSpan
from migrations import upgrade
from reports.export.evaluation import write_evaluation

NAME = CampaignId("measured")
RUN = "run"
PATCH = b"diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x = 1\n+x = '\xe9'\n"
ACTIONS = (
    "THOUGHT: look\n\n```bash\ncat a.py\n```",
    "no block",
    "```bash\nsed -i s/1/2/ a.py\n```",
)
ENDS: list[tuple[str, Verdict | None]] = [
    ("repo__lib-1", Verdict.RESOLVED),
    ("repo__lib-1", Verdict.RESOLVED),
    ("repo__lib-2", Verdict.RESOLVED),
    ("repo__lib-2", Verdict.NO_PATCH),
    ("repo/lib:3", None),
    ("repo/lib:3", Verdict.NOT_RESOLVED),
]
"""Task and end of each rollout; None: masked."""


@pytest.fixture
async def db(fresh_database: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    await asyncio.to_thread(upgrade.upgrade, fresh_database)
    monkeypatch.setenv("MAINSPRING_DATABASE_URL", fresh_database)
    monkeypatch.setenv("COLUMNS", "100")
    async with Database.open(fresh_database, pool_size=2) as database:
        yield database


def reply(turn: int, start: int, text: str, *, in_tokens: bool) -> Call:
    if not in_tokens:
        parent = turn - 1 if turn else None
        return Call(turn, parent, 0, (), (), (), (), text, "stop", 0.5, 10 + turn, 4)
    ids, prompt = tuple(text.encode()), tuple(range(1000 * turn, 1000 * turn + 6))
    spans = (VersionSpan(3, 0, 4), VersionSpan(4, 4, len(ids)))
    parent = turn - 1 if turn else None
    return Call(turn, parent, start, prompt, ids, (-0.25,) * len(ids), spans, text, "stop", 0.5)


async def play(db: Database, id: RolloutId, verdict: Verdict | None, *, in_tokens: bool) -> None:
    await rollouts.claim(db, id, RUN)
    start = 0
    for turn, text in enumerate(ACTIONS):
        said = reply(turn, start, text, in_tokens=in_tokens)
        await turns.put_call(db, id, 0, said)
        start = said.end
        if turn != 1:
            ran = Execution(turn, 0, "cat a.py", 0, b"x = \xff1\n", False, False, 0.5)
            await turns.put_execution(db, id, 0, ran)
    if verdict not in (None, Verdict.NO_PATCH):
        await rollouts.put_patch(db, id, 0, PATCH)
    if verdict is not None:
        report = GradeReport(judge="test_log", fail_to_pass_passed=("t::a",), note="")
        await rollouts.put_grade(db, id, 0, verdict, "1 passed", report=report)
    await rollouts.finish(
        db,
        id,
        0,
        stop_reason=StopReason.SUBMITTED if verdict else StopReason.INFRA_FAULT,
        verdict=verdict,
        reward=None if verdict is None else float(verdict is Verdict.RESOLVED),
        fault=None if verdict else "the node died",
        num_turns=3,
        phase_s={"generate": 1.5},
        reward_parts={"outcome": 1.0},
        suspicions=[Suspicion.EDITED_TESTS] if verdict is Verdict.NO_PATCH else [],
    )


async def add_campaign(db: Database, ends: list[tuple[str, Verdict | None]] = ENDS) -> None:
    """The rollouts of even number gave tokens, the others text."""
    ids = list(dict.fromkeys(TaskId(task) for task, _ in ends))
    await tasks.put_tasks(
        db,
        [
            SweTask(
                id=id,
                source="made-up",
                split="test",
                issue=f"Fix {id}.",
                files={"a.py": "x = 1\n"},
                test_command="true",
            )
            for id in ids
        ],
    )
    config = EvaluationConfig(
        name=NAME,
        policy=PolicyConfig(model="m1"),
        tasks=TasksConfig(source="made-up"),
        samples=2,
    )
    chosen = [selections.Selected(id, "test", place, None) for place, id in enumerate(ids)]
    await campaigns.create(db, config, chosen)
    group = run_group_id(NAME, 0)
    made = [
        NewRollout(rollout_id(group, number), TaskId(task), number, 0.0)
        for number, (task, _) in enumerate(ends)
    ]
    await groups.create_group(
        db, group, NAME, GroupKind.EVAL, index=0, policy_version=0, split="test", rollouts=made
    )
    for number, (_, verdict) in enumerate(ends):
        await play(db, rollout_id(group, number), verdict, in_tokens=number % 2 == 0)
    await groups.finish_group(db, group)


async def run(*arguments: str) -> Result:
    app = typer.Typer()
    app.add_typer(command.app)
    # the command runs an event loop of its own
    return await asyncio.to_thread(CliRunner().invoke, app, ["rollout", *map(str, arguments)])


async def export(out: Path, *arguments: str) -> Result:
    result = await run("export", str(out), "--campaign", NAME, "--json", *arguments)
    if result.exception is not None:
        raise result.exception
    return result


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_an_evaluation_is_written_whole_and_again_the_same(
    db: Database, tmp_path: Path
) -> None:
    await add_campaign(db)
    summary = await write_evaluation(db, NAME, tmp_path)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(files) == 3 * len(ENDS) + 4

    assert json.loads((tmp_path / "summary.json").read_text()) == json.loads(json.dumps(summary))
    counts = ("total", "scored", "errors", "resolved", "no_patch", "unfinished", "suspicious")
    assert [summary[name] for name in counts] == [6, 5, 1, 3, 1, 0, 1]
    assert summary["resolve_rate"] == pytest.approx(3 / 5)
    at_k = [(each["k"], each["value"], each["num_tasks"]) for each in summary["pass_at_k"]]
    assert at_k == [(1, pytest.approx(0.5), 3), (2, pytest.approx(1.0), 2)]
    assert summary["verdicts"] == {"no_patch": 1, "not_graded": 1, "not_resolved": 1, "resolved": 3}

    results = lines(tmp_path / "results.jsonl")
    assert [result["instance_id"] for result in results] == [task for task, _ in ENDS]
    assert results[4]["error"] == "the node died" and results[4]["masked"]
    assert {result["patch_bytes"] for result in results} == {0, len(PATCH)}
    folder = tmp_path / results[5]["folder"]
    assert folder.name == "repo_lib_3__g0__i1"
    assert (folder / "patch.diff").read_bytes() == PATCH
    said = json.loads((folder / "traj.json").read_text())
    assert [message["role"] for message in said["messages"]][-2:] == ["user", "assistant"]
    assert said["messages"][1]["content"].count("Fix repo/lib:3.") == 1
    codes = [[ran["returncode"] for ran in step["commands"]] for step in said["steps"]]
    assert codes == [[0], [], [0]]
    assert [step["parent"] for step in said["steps"]] == [None, 0, 1]
    assert said["info"]["grade_report"]["fail_to_pass_passed"] == ["t::a"]
    meta = json.loads((folder / "meta.json").read_text())
    assert (meta["model"], meta["sampling"]["temperature"]) == ("m1", 0.0)
    assert meta["n_prompt_tokens"] == 10 + 11 + 12

    assert await write_evaluation(db, NAME, tmp_path) == summary
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files


async def test_predictions_load_in_swebench(db: Database, tmp_path: Path) -> None:
    await add_campaign(db)
    await write_evaluation(db, NAME, tmp_path)
    for name in ("predictions.jsonl", "predictions-1.jsonl"):
        found = lines(tmp_path / name)
        assert {tuple(line) for line in found} == {
            ("instance_id", "model_name_or_path", "model_patch")
        }
        # One of each task, as the official harness wants it.
        assert [line["instance_id"] for line in found] == list(dict(ENDS))
    assert "+x = '\N{REPLACEMENT CHARACTER}'" in found[-1]["model_patch"]
    official = pytest.importorskip("swebench.harness.utils", reason="swebench is not installed")
    path = str(tmp_path / "predictions.jsonl")
    loaded = official.get_predictions_from_file(path, "any", "test")
    assert [line["instance_id"] for line in loaded] == list(dict(ENDS))


async def test_parquet_has_every_token(db: Database, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    await add_campaign(db)
    out = tmp_path / "deep" / "rollouts.parquet"
    result = await export(out, "--format", "parquet")
    told = {"out": str(out), "format": "parquet", "rollouts": 6, "skipped": 0}
    assert json.loads(result.stdout) == told
    rows = parquet.read_table(out).to_pylist()
    assert [row["instance_id"] for row in rows] == [task for task, _ in ENDS]
    assert [row["reward"] for row in rows] == [1.0, 1.0, 1.0, 0.0, None, 0.0]
    for number, row in enumerate(rows):
        if number % 2:
            assert row["token_ids"] is None
            continue
        id = RolloutId(row["rollout"])
        replies, _ = await turns.history(db, id, 0)
        [sample] = samples_of(id, replies)
        np.testing.assert_array_equal(row["token_ids"], sample.token_ids)
        np.testing.assert_array_equal(row["action_mask"], sample.action_mask)
        np.testing.assert_array_equal(row["logprobs"], sample.logprobs)
        np.testing.assert_array_equal(row["versions"], sample.versions)
    assert json.loads(rows[0]["reward_parts"]) == {"outcome": 1.0}
    assert [path.name for path in out.parent.iterdir()] == [out.name]


async def test_chats_for_fine_tuning_are_the_resolved_ones(db: Database, tmp_path: Path) -> None:
    await add_campaign(db)
    await export(tmp_path / "good.jsonl", "--format", "sft")
    await export(tmp_path / "all.jsonl", "--format", "sft", "--all")
    good, every = lines(tmp_path / "good.jsonl"), lines(tmp_path / "all.jsonl")
    assert (len(good), len(every)) == (3, 6)
    assert {line["resolved"] for line in good} == {True}
    for line in every:
        roles = [message["role"] for message in line["messages"]]
        assert roles == ["system", "user", *["assistant", "user"] * 2, "assistant"]
        replies = [m["content"] for m in line["messages"] if m["role"] == "assistant"]
        assert replies == list(ACTIONS)


async def test_atif_steps_are_numbered_and_results_name_their_calls(
    db: Database, tmp_path: Path
) -> None:
    await add_campaign(db)
    await export(tmp_path / "atif", "--format", "atif", "--limit", "2")
    in_tokens, in_text = (
        json.loads(path.read_text()) for path in sorted((tmp_path / "atif").iterdir())
    )
    for trajectory in (in_tokens, in_text):
        steps = trajectory["steps"]
        assert [step["step_id"] for step in steps] == [1, 2, 3, 4, 5]
        assert [step["source"] for step in steps] == ["system", "user", *["agent"] * 3]
        assert trajectory["final_metrics"]["total_steps"] == 5
        for step in steps[2:]:
            calls = {call["tool_call_id"] for call in step.get("tool_calls", ())}
            [result] = step["observation"]["results"]
            assert {result.get("source_call_id")} == (calls or {None})
            assert step["metrics"].keys() >= {"prompt_tokens", "completion_tokens"}
        assert steps[2]["tool_calls"][0]["arguments"] == {"command": "cat a.py"}
    metrics = in_tokens["steps"][3]["metrics"]
    assert len(metrics["completion_token_ids"]) == len(metrics["logprobs"])
    assert len(metrics["logprobs"]) == metrics["completion_tokens"]
    assert "logprobs" not in in_text["steps"][3]["metrics"]
    official = pytest.importorskip("atif", reason="the package `atif` is not installed")
    for trajectory in (in_tokens, in_text):
        official.Trajectory.model_validate(trajectory)


async def test_bad_input_is_one_message_and_leaves_nothing(db: Database, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(UsageError, match="campaign measured"):
        await export(out)
    await add_campaign(db, [("repo__lib-1", Verdict.NOT_RESOLVED)])
    with pytest.raises(UsageError, match="no resolved rollout"):
        await export(out, "--resolved")
    assert not out.exists()
    await export(out)
    with pytest.raises(UsageError, match="not empty"):
        await export(out)
    with pytest.raises(UsageError, match="is a folder"):
        await export(out, "--format", "sft", "--all", "--force")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        await export(tmp_path / "file", "--force")
    with pytest.raises(UsageError, match="exists"):
        await export(tmp_path / "file", "--format", "sft", "--all")
    await export(out, "--force")
    assert [path.name for path in out.iterdir()] == ["repo__lib-1__g0__i0"]


async def test_show_tells_what_the_verdict_was_made_of(db: Database) -> None:
    await add_campaign(db)
    result = await run("show", rollout_id(run_group_id(NAME, 0), 3))
    assert result.exit_code == 0, result.output
    for said in ("no patch", "steers tests", "1 of 1 pass", "outcome", "test_log"):
        assert said in result.output
