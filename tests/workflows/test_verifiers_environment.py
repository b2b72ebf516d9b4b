"""The example for verifiers is imported and played on a real node, and its service is killed."""

import json
import os
import random
import signal
import uuid
from pathlib import Path
from typing import Any

from cluster import Cluster
from service_rollouts import says

from infra.db.rollouts import rollouts, turns
from infra.functions.labelled import LABEL
from infra.sources.protocol import ImportOptions
from infra.sources.resolve import open_source
from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.reading import read_layers
from mainspring.ids import TaskId
from mainspring.protocol.rollout import RolloutResult
from mainspring.status import StopReason, Verdict
from mainspring.tasks.own_task import OwnTask
from tests.processes import running
from tests.verifiers_python import EXAMPLE, PRESENT, needs_verifiers

pytestmark = needs_verifiers
NUMBER = 3
SECRET = random.Random(f"guess/{NUMBER}").randint(1, 100)
GUESSES = ("50", "0", str(SECRET))


def section(**changed: Any) -> dict[str, Any]:
    raw = read_layers(EXAMPLE / "campaign.toml").table["environments"]["guess"]
    return {**raw, "python": str(PRESENT), **changed}


def config_of(**agent: Any) -> CampaignConfig:
    raw = read_layers(EXAMPLE / "campaign.toml").table
    return CampaignConfig.model_validate(
        {
            "name": f"verifiers-{uuid.uuid4().hex[:8]}",
            "agent": {**raw["agent"], **agent},
            "environments": {"guess": section()},
            "policy": {"model": "scripted", "max_context": 100_000, "max_new_tokens": 1000},
        }
    )


def imported(folder: Path) -> OwnTask:
    """The example's file, but for where its Python and its environment are."""
    file = folder / "campaign.toml"
    python = 'python = "../../.venv-verifiers/bin/python"'
    text = (EXAMPLE / "campaign.toml").read_text()
    assert text.count(python) == 1
    file.write_text(text.replace(python, f'folder = "{EXAMPLE}"\npython = "{PRESENT}"'))
    rows = [row.result for row in open_source(str(file), ImportOptions()).rows()]
    tasks = [task for task in rows if isinstance(task, OwnTask)]
    assert [task.split for task in tasks] == ["train"] * 48 + ["heldout"] * 16
    return tasks[NUMBER]


async def played(
    cluster: Cluster, config: CampaignConfig, task: OwnTask, *, is_killed: bool = False
) -> RolloutResult:
    changed = {"id": TaskId(config.name), "source": "tests"}
    campaign, group, [rollout] = await cluster.store(config, task.model_copy(update=changed))
    killed: list[int] = []

    async def kill(sticky: str) -> None:
        if f"{sticky}.t1" in cluster.policy.asked and not killed:
            label = f"/{campaign}-guess."
            [service] = running(lambda each: label in each.environ().get(LABEL, ""))
            killed.append(service.pid)
            os.kill(service.pid, signal.SIGKILL)

    if is_killed:
        cluster.policy.hold = kill
    handle = await cluster.start(rollout, campaign, group)
    result = await handle.result()
    assert len(killed) == is_killed
    return result


async def test_the_example_is_imported_and_played_through_a_loss(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.policy.say = lambda rollout, turn: says(GUESSES[turn])
    task = imported(tmp_path)
    assert task.issue == "I think of a number from 1 to 100. Which one is it?"
    result = await played(cluster, config_of(), task, is_killed=True)
    assert (result.stop_reason, result.verdict) == (StopReason.SUBMITTED, Verdict.RESOLVED)
    assert (result.reward, result.num_turns) == (1.0, 3)
    calls, ran = await turns.history(cluster.db, result.rollout, 0)
    assert [(each.command, each.reward, each.is_over) for each in ran] == [
        (GUESSES[0], 0.0, False),
        (GUESSES[1], 0.0, False),
        (GUESSES[2], 1.0, True),
    ]
    assert bytes(calls[2].prompt_ids).decode().endswith("It is higher than 0.")
    left = await rollouts.get_final_patch(cluster.db, result.rollout)
    assert left and json.loads(left)["parts"]["metrics"] == {"num_guesses": 3.0}
    report = await rollouts.get_grade_report(cluster.db, result.rollout)
    assert report is not None and (report.judge, report.score) == ("verifiers", 1.0)


async def test_one_that_gives_up_is_scored_by_the_environment(cluster: Cluster) -> None:
    cluster.policy.say = lambda rollout, turn: says("0")
    task = OwnTask(
        id=TaskId("t"),
        kind="guess",
        source="s",
        split="train",
        issue="I think of a number from 1 to 100. Which one is it?",
        data={"data_idx": NUMBER},
    )
    result = await played(cluster, config_of(step_limit=2), task)
    assert (result.stop_reason, result.verdict) == (StopReason.STEP_LIMIT, Verdict.NOT_RESOLVED)
    assert result.reward == 0.0
    left = await rollouts.get_final_patch(cluster.db, result.rollout)
    facts = json.loads(left or b"")
    assert (facts["is_over"], facts["parts"]["metrics"]) == (False, {"num_guesses": 2.0})
