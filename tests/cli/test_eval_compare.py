"""`mainspring eval compare`: stored evaluations, read and paired by the command."""

import asyncio
import json
from collections.abc import Sequence

import pytest
from store_records import config as training_config
from typer.testing import CliRunner, Result

from cli.main import app
from infra.db.database import Database
from infra.db.rollouts import groups, rollouts
from infra.db.rollouts.groups import NewRollout
from infra.db.runs import campaigns
from infra.db.tasks import selections, tasks
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.errors import UsageError
from mainspring.ids import CampaignId, TaskId, rollout_id, run_group_id
from mainspring.status import CampaignStatus, GroupKind, StopReason, Verdict
from mainspring.tasks.swe_task import SweTask

YES, NO = Verdict.RESOLVED, Verdict.NOT_RESOLVED
LONG = "a-task-of-a-repository-with-a-very-long-name__and-an-id-that-fills-more-than-a-line-11099"
Ends = Sequence[tuple[str, Verdict | None]]


async def evaluated(db: Database, name: str, ends: Ends, *, samples: int = 1) -> None:
    """An evaluation with one rollout for each of `ends`; None: masked."""
    ids = list(dict.fromkeys(TaskId(task) for task, _ in ends))
    common = {"source": "compared", "split": "test", "issue": "Fix.", "test_command": "true"}
    made = [
        SweTask.model_validate({"id": id, "files": {"a.py": ""}, **common})
        for id in (LONG, *(f"t{number}" for number in range(6)))
    ]
    await tasks.put_tasks(db, made)
    config = EvaluationConfig.model_validate(
        {"name": name, "policy": {"model": f"model-of-{name}"}, "samples": samples}
    )
    chosen = [selections.Selected(id, "test", place, None) for place, id in enumerate(ids)]
    await campaigns.create(db, config, chosen)
    group = run_group_id(CampaignId(name), 0)
    rows = [
        NewRollout(rollout_id(group, number), TaskId(task), number, 1.0)
        for number, (task, _) in enumerate(ends)
    ]
    await groups.create_group(
        *(db, group, CampaignId(name), GroupKind.EVAL),
        **{"index": 0, "policy_version": 0, "split": "test", "rollouts": rows},
    )
    for row, (_, verdict) in zip(rows, ends, strict=True):
        await rollouts.claim(db, row.id, "run")
        await rollouts.finish(
            *(db, row.id, 0),
            stop_reason=StopReason.SUBMITTED if verdict else StopReason.INFRA_FAULT,
            verdict=verdict,
            reward=None if verdict is None else float(verdict is YES),
            fault=None if verdict else "the node died",
            num_turns=1,
            phase_s={},
        )
    await campaigns.set_status(db, CampaignId(name), CampaignStatus.FINISHED)


async def compare(*arguments: str) -> Result:
    return await asyncio.to_thread(
        CliRunner().invoke, app, ["eval", "compare", *arguments], env={"COLUMNS": "80"}
    )


async def test_two_evaluations(
    db: Database, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_DATABASE_URL", store_url)
    before = [(LONG, NO), ("t0", YES), ("t1", YES), ("t2", NO), ("t3", None), ("t4", NO)]
    after = [(LONG, YES), ("t0", YES), ("t1", NO), ("t2", NO), ("t3", YES), ("t5", YES)]
    await evaluated(db, "before", before)
    await evaluated(db, "after", after)
    shown = await compare("before", "after")
    if shown.exception is not None:
        raise shown.exception
    lines = shown.output.splitlines()
    assert lines[0] == "B less A   +0.0 points, 95 % interval -65.3 to +65.3, over 4 tasks"
    assert "A          50 % solved  before (1 masked)" in lines
    assert "           model-of-after, agent bash" in lines
    table = ["both       1", "only A     1", "only B     1", "neither    1"]
    assert [line for line in lines if line in table] == table
    assert "McNemar    p = 1.000, exact, of 2 tasks that differ" in lines
    assert "left out   1 tasks without a scored rollout in both" in lines
    assert "not common 1 tasks are in A alone, 1 in B alone" in lines
    assert lines[-4:] == ["A is better in", "           t1", "B is better in", f"           {LONG}"]

    read = json.loads((await compare("before", "after", "--json")).output)
    assert (read["both"], read["only_a"], read["only_b"], read["neither"]) == (1, 1, 1, 1)
    assert read["unscored"] == ["t3"] and read["a"]["num_masked"] == 1
    assert (read["only_in_a"], read["only_in_b"]) == (["t4"], ["t5"])
    assert [each["task"] for each in read["differing"]] == [LONG, "t1"]
    assert read["method"] == "bonett-price" and read["low"] == -read["high"]


async def test_several_rollouts_of_a_task(
    db: Database, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_DATABASE_URL", store_url)
    await evaluated(db, "two", [("t0", YES), ("t0", NO), ("t1", NO), ("t1", NO)], samples=2)
    await evaluated(db, "one", [("t0", YES), ("t1", NO)])
    shown = await compare("two", "one")
    lines = shown.output.splitlines()
    assert lines[0].startswith("B less A   +25.0 points, 95 % interval ")
    assert "interval   bootstrap over tasks, 10000 draws: tasks have several rollouts" in lines
    assert lines[-1] == "           t0  A 1/2  B 1/1" and "the same   1" in lines
    read = json.loads((await compare("two", "one", "--json")).output)
    assert (read["method"], read["p_value"], read["the_same"]) == ("bootstrap", None, 1)


async def test_what_cannot_be_compared_is_refused(
    db: Database, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_DATABASE_URL", store_url)
    await evaluated(db, "left", [("t0", YES), ("t1", None)])
    await evaluated(db, "right", [("t2", YES)])
    await evaluated(db, "masked", [("t1", YES)])
    await campaigns.create(db, training_config("trained"))
    for names, told in (
        (("left", "right"), "left and right have no task in common: 2 are in left alone, 1 in"),
        (("left", "masked"), "none with a scored rollout in both: left has 1 masked and 0 unf"),
        (("left", "left"), "left is compared with itself"),
        (("left", "trained"), "trained is a run of the kind train: only evaluations"),
        (("left", "nowhere"), "no campaign nowhere is stored"),
    ):
        ended = await compare(*names)
        assert isinstance(ended.exception, UsageError) and ended.exception.exit_code == 2
        assert told in ended.exception.message and ended.exception.remedy
