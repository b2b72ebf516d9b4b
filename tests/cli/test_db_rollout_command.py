"""`mainspring rollout list | show` and `mainspring campaign list | show` on a narrow terminal."""

import asyncio
import json
from pathlib import Path

import pytest
import typer
from sqlalchemy import update
from store_records import CAMPAIGN, call, execution, finish, task
from typer.testing import CliRunner

from cli.campaign import campaign
from cli.rollout import rollout
from infra.db.database import Database
from infra.db.rollouts import groups, rollouts, turns
from infra.db.rollouts.groups import NewRollout
from infra.db.runs import campaigns
from infra.db.tables.models import GroupRow
from infra.db.tasks import tasks
from infra.db.training import policies, steps
from mainspring.config.campaign import CampaignConfig
from mainspring.config.trainer import TrainerConfig
from mainspring.config.training.optimizer import WarmStartConfig
from mainspring.errors import UsageError
from mainspring.ids import GroupId, RolloutId, eval_group_id, group_id, rollout_id
from mainspring.status import (
    CampaignStatus,
    GroupKind,
    GroupStatus,
    RolloutPhase,
    StopReason,
    Suspicion,
    Untrained,
    Verdict,
)
from mainspring.tasks.criterion import GradeReport
from mainspring.training.trained_rollouts import TrainedRollout

LONG = "django__django-11099-with-a-very-long-name"
HOSTILE = b"\x1b[31mred\x1b[0m\x1b]0;owned\x07 text\n"
PATCH = b"--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"


@pytest.fixture
async def store(
    db: Database,
    store_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Database:
    """A campaign with an evaluation, two groups and one step, in the database commands use."""
    monkeypatch.setenv("MAINSPRING_DATABASE_URL", store_url)
    monkeypatch.setenv("MAINSPRING_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    train = TrainerConfig(warm_start=WarmStartConfig(), groups_per_step=1)
    await campaigns.create(db, CampaignConfig(name=CAMPAIGN, trainer=train))
    await campaigns.create(db, CampaignConfig(name="second", trainer=train))
    made = [task(0), task(1).model_copy(update={"id": LONG}), task(2, split="heldout")]
    await tasks.put_tasks(db, made)
    await policies.put_first_policy(db, CAMPAIGN, "/models/v0", "/checkpoints/v0")
    evaluated = eval_group_id(CAMPAIGN, "heldout", "sampled", 0)
    await add(db, evaluated, made[2].id, [1.0, 0.0], GroupKind.EVAL, None)
    await add(db, group_id(CAMPAIGN, 0), made[0].id, [1.0, 0.0], GroupKind.TRAIN, 0)
    await add(db, group_id(CAMPAIGN, 1), LONG, [None, 0.0], GroupKind.TRAIN, 1)
    await steps.plan_step(db, CAMPAIGN, 1, 1)
    await steps.commit_step(
        db,
        CAMPAIGN,
        1,
        metrics={"reward_mean": 0.5, "seconds": 574.0, "entropy": 0.3},
        policy_path="/models/v1",
        checkpoint="/checkpoints/v1",
        rollouts=[
            TrainedRollout(RolloutId("first/g000000/000"), 0.5, False, 1210, None),
            TrainedRollout(RolloutId("first/g000000/001"), -0.5, False, 0, Untrained.OVERLONG),
        ],
    )
    return db


async def add(
    db: Database,
    group: GroupId,
    of: str,
    rewards: list[float | None],
    kind: GroupKind,
    index: int | None,
) -> None:
    train = kind is GroupKind.TRAIN
    await groups.create_group(
        db,
        group,
        CAMPAIGN,
        kind,
        policy_version=0,
        split="train" if train else "heldout",
        index=index,
        task=of if train else None,
        rollouts=[NewRollout(rollout_id(group, n), of, n, 1.0) for n in range(len(rewards))],
    )
    for number, reward in enumerate(rewards):
        await play(db, rollout_id(group, number), reward)
    await groups.finish_group(db, group)


async def play(db: Database, id: RolloutId, reward: float | None) -> None:
    """A command, then a reply that was cut before its command."""
    epoch = (await rollouts.claim(db, id, "run-a")).epoch
    first = call(0, 0, num_reply=5)
    await turns.put_call(db, id, epoch, first)
    await turns.put_intent(db, id, epoch, 0, 0, "echo 0")
    await turns.put_execution(db, id, epoch, execution(0, HOSTILE))
    await turns.put_call(db, id, epoch, call(1, first.end))
    if reward is None:
        await finish(db, id, epoch, None)
        return
    await rollouts.put_patch(db, id, epoch, PATCH)
    verdict = Verdict.RESOLVED if reward else Verdict.NOT_RESOLVED
    report = GradeReport(judge="exit_code", returncode=1 - int(reward))
    await rollouts.put_grade(db, id, epoch, verdict, "1 failed: test_limit\n", report=report)
    await rollouts.finish(
        db,
        id,
        epoch,
        stop_reason=StopReason.SUBMITTED,
        verdict=verdict,
        reward=reward,
        fault=None,
        num_turns=2,
        phase_s={"generate": 1.5},
        suspicions=[Suspicion.LOOKED_FOR_TESTS] if reward else [],
    )


async def test_list_shows_whole_ids_in_80_columns(store: Database) -> None:
    shown = await run("rollout", "list", CAMPAIGN)
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80
    head = lines[1]
    assert head.split() == ["rollout,", "task", "state", "verdict", "reward", "turns"]
    # What stands there can be given to `show`.
    for group in ("g000000", "g000001", "eval-v0000-heldout-sampled"):
        for index in range(2):
            assert f"{group}/{index:03d}" in lines, "no room beside it: it has its own line"
            found = await run("rollout", "show", f"{group}/{index:03d}", "--json")
            assert json.loads(found)["id"] == f"{CAMPAIGN}/{group}/{index:03d}"
    tasks_shown = "".join(line[: head.index("state")].strip() for line in lines[2:])
    assert tasks_shown.count(LONG) == 2 and "train-0" in tasks_shown
    assert "try" not in head and lines[-1] == "6 of 6" and "None" not in shown
    figures = [line.split()[-2:] for line in lines if line.startswith(("  train-0", "  heldout-2"))]
    assert figures == 2 * [["1", "2"], ["0", "2"]]  # a reward is no 1.0
    newest = await run("rollout", "list", CAMPAIGN, "--limit", "2")
    assert "2 of 6; --limit 6 for more" in newest


async def test_list_is_a_table_where_there_is_room(store: Database) -> None:
    again = rollout_id(group_id(CAMPAIGN, 2), 0)
    await add(store, group_id(CAMPAIGN, 2), LONG, [0.0], GroupKind.TRAIN, 2)
    lines = (await run("rollout", "list", CAMPAIGN, "--split", "train")).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].split() == ["rollout", "task", "state", "verdict", "reward", "turns"]
    [masked] = [line for line in lines if line.startswith("g000001/000 ")]
    assert masked.split()[-4:] == ["infra", "-", "-", "2"]
    # Begun anew: one more column, and it is the phase that is told.
    async with store.transaction() as connection:
        await connection.execute(
            update(GroupRow)
            .where(GroupRow.id == group_id(CAMPAIGN, 2))
            .values(status=GroupStatus.RUNNING)
        )
    await rollouts.claim(store, again, "run-b")
    lines = (await run("rollout", "list", CAMPAIGN, "--split", "train")).splitlines()
    assert max(map(len, lines)) <= 80
    [head] = [line for line in lines if line.startswith("rollout")][1:]
    assert head.split()[-3:] == ["reward", "turns", "try"]
    at = next(number for number, line in enumerate(lines) if line.startswith("g000002/000"))
    row = lines[at + 1] if lines[at] == "g000002/000" else lines[at]
    phase = (await rollouts.get(store, again)).phase
    assert phase is not RolloutPhase.DONE and f" {phase.value} " in row
    assert row.split()[-3:] == ["-", "0", "2"]


@pytest.mark.parametrize("columns", ["40", "60", "200"])
async def test_no_id_and_no_figure_is_cut_on_any_terminal(
    store: Database, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    shown = await run("rollout", "list", CAMPAIGN)
    assert "\u2026" not in shown
    for group in ("g000000", "g000001", "eval-v0000-heldout-sampled"):
        assert f"{group}/001" in shown
    for word in ("reward", "turns", "submitted", "resolved", "(suspicious)"):
        assert word in shown


@pytest.mark.parametrize(
    "options, expected",
    [
        (["--failed"], 3),
        (["--masked"], 1),
        (["--suspicious"], 2),
        (["--verdict", "resolved"], 2),
        (["--stop", "infra_fault"], 1),
        (["--task", "django"], 2),
        (["--split", "heldout"], 2),
        (["--version", "0"], 6),
        (["--version", "1"], 0),
        (["--step", "1"], 2),
        (["--fault", "NODE died"], 1),
        (["--turns", ">1"], 6),
        (["--turns", ">2"], 0),
        (["--turns", "1..2", "--failed", "--split", "train"], 2),
        (["--sort", "reward", "--limit", "2"], 2),
    ],
)
async def test_filters(store: Database, options: list[str], expected: int) -> None:
    found = json.loads(await run("rollout", "list", CAMPAIGN, "--json", *options))
    assert len(found) == expected
    if "reward" in options:
        assert [each["reward"] for each in found] == [1.0, 1.0]


@pytest.mark.parametrize(
    "arguments, message, remedy",
    [
        (["rollout", "list", "frist"], "no campaign frist is stored", "did you mean first?"),
        (["campaign", "show", "secnd"], "no campaign secnd", "did you mean second?"),
        (["campaign", "report", "secnd"], "no campaign secnd", "did you mean second?"),
        (["rollout", "list", "first", "--split", "test"], "no split 'test'", "heldout, train"),
        (["rollout", "list", "first", "--task", "djagno"], "'djagno'", "tasks list"),
        (["rollout", "list", "first", "--turns", "many"], "--turns 'many'", "'>10'"),
        (["rollout", "list", "first", "--sort", "size"], "--sort 'size'", "newest"),
        (["rollout", "show", "first/g000000/01"], "no rollout first/g000000/01", "g000000/001"),
        (["rollout", "show", "frist/g000000/001"], "no campaign frist", "did you mean"),
        (["rollout", "show", "001"], "several rollouts are called 001", "whole id"),
        (["rollout", "show", "g000001/000", "--patch"], "has no patch", "tells why"),
        (["rollout", "show", "g000001/000", "--turn", "3"], "has 2 turns", "--turn 1 to 2"),
        (["rollout", "export", "out", "--campaign", "frist"], "no campaign frist", "first"),
    ],
)
async def test_what_is_not_there_is_named_with_its_neighbours(
    store: Database, arguments: list[str], message: str, remedy: str
) -> None:
    with pytest.raises(UsageError) as caught:
        await run(*arguments)
    assert message in caught.value.message and remedy in caught.value.remedy


async def test_show_tells_everything(store: Database) -> None:
    shown = await run("rollout", "show", f"rollout/{CAMPAIGN}/g000000/001")
    for expected in (
        "task       train-0 (train, policy version 0)",
        "not resolved: a hidden test fails; reward 0",
        "trained    no token in step 1: a limit cut it off; advantage -0.5",
        "Fix it.",
        "turn 1 (version 0, 1; 7 + 5 tokens; 0.2 s)",
        "[exit 0, 0.5 s, reward 0]",
        "not run: Your reply had 0 bash blocks",
        "+x = 2",
        "1 failed: test_limit",
    ):
        assert expected in shown
    assert "\x1b" not in shown and "\x07" not in shown and "red" in shown
    assert "None" not in shown
    masked = await run("rollout", "show", "g000001/000")
    assert "fault      the node died" in masked and "infrastructure failed" in masked
    resolved = await run("rollout", "show", "g000000/000")
    assert "searched for the hidden tests" in resolved
    assert "trained    step 1, 1,210 tokens; advantage +0.5" in resolved
    only = await run("rollout", "show", "g000000/001", "--turn", "2")
    assert "turn 2" in only and "turn 1" not in only and "Fix it." not in only
    assert await run("rollout", "show", "g000000/001", "--patch") == PATCH.decode()
    assert await run("rollout", "show", "g000000/001", "--tests") == "1 failed: test_limit\n"
    found = json.loads(await run("rollout", "show", "g000000/001", "--json"))
    assert found["patch"] == PATCH.decode() and found["issue"] == "Fix it."
    assert found["training"]["masked_why"] == "overlong" and found["training"]["gaps"] == []
    assert found["turns"][0]["policy_versions"] == [0, 1] and found["turns"][1]["not_run"]
    assert found["grade_output"] == "1 failed: test_limit\n" and found["finished_at"]


async def test_campaigns_on_a_narrow_terminal(store: Database) -> None:
    listed = await run("campaign", "list")
    assert max(map(len, listed.splitlines())) <= 80
    assert "step 1 of 100" in listed and "second" in listed
    await campaigns.set_status(store, CAMPAIGN, CampaignStatus.FINISHED)
    shown = await run("campaign", "show", CAMPAIGN)
    assert "campaign first: finished" in shown
    assert "50 % (9-91 %)" in shown  # of the first policy, with its interval
    assert "9 min 34 s" in shown and "0.30" in shown
    assert "waiting" not in shown and "blocked" not in shown and "num_steps" not in shown
    assert "mainspring campaign report first" in shown
    found = json.loads(await run("campaign", "show", CAMPAIGN, "--json"))
    assert found["waits"] == [] and found["num_steps"] == 1
    assert [line["kind"] for line in found["metrics"]] == ["evaluation", "step"]
    with pytest.raises(UsageError, match="has already finished: nothing to cancel"):
        await run("campaign", "cancel", CAMPAIGN)
    with pytest.raises(UsageError, match="has already finished: nothing to pause"):
        await run("campaign", "pause", CAMPAIGN)
    assert [line["kind"] for line in found["metrics"]] == ["evaluation", "step"]


async def run(*arguments: str) -> str:
    app = typer.Typer()
    app.add_typer(rollout.app)
    app.add_typer(campaign.app)
    # In a thread, as on the command line: no event loop of ours around it.
    result = await asyncio.to_thread(CliRunner().invoke, app, list(arguments))
    if result.exception is not None:
        raise result.exception
    return result.stdout
