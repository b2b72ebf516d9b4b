"""The example environment plays rollouts on a real node, and its worlds can be lost."""

import asyncio
import json
import uuid
from typing import Any

import pytest
from cluster import Cluster
from guessing import EXAMPLE, GUESSES, make, play
from scripted import SUBMIT, bash

from cli.operations.runs import campaign_launch as launch
from infra.db.cache import FactCache
from infra.db.nodes import sandboxes
from infra.db.rollouts import rollouts, turns
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.environments.hosted import Environments
from infra.environments.swe import SweEnvironment
from infra.sandbox.backends import Backends
from infra.sources.importing import import_rows
from infra.sources.protocol import ImportOptions
from infra.sources.resolve import open_source
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.evaluations.verification import VerificationConfig
from mainspring.config.files.reading import load_campaign
from mainspring.config.policy import PolicyConfig
from mainspring.config.tasks import TasksConfig
from mainspring.environments.choice import check_environments
from mainspring.environments.protocol import Judged, Place
from mainspring.errors import UsageError
from mainspring.ids import CampaignId, group_id
from mainspring.status import StopReason, Verdict
from mainspring.tasks.criterion import GradeReport
from mainspring.tasks.own_task import OwnTask
from mainspring.tasks.sandbox_choice import BWRAP, IN_PROCESS
from mainspring.tasks.swe_task import SweTask
from node.held_sandboxes import HeldSandboxes
from node.reaper import Reaper

pytestmark = pytest.mark.usefixtures("guess_importable")


async def test_the_example_environment_plays_a_rollout(cluster: Cluster) -> None:
    cluster.policy.say = lambda rollout, turn: GUESSES[turn]
    result = await play(cluster)
    assert (result.stop_reason, result.verdict) == (StopReason.SUBMITTED, Verdict.RESOLVED)
    assert (result.reward, result.num_turns) == (1.0, 4)
    replies, ran = await turns.history(cluster.db, result.rollout, 0)
    assert [each.output for each in ran] == [b"lower", b"higher", b"correct"]
    assert "one whole number" in bytes(replies[0].prompt_ids).decode()
    assert bytes(replies[1].prompt_ids).decode().endswith("The number is lower.")
    assert await rollouts.get_final_patch(cluster.db, result.rollout) == b"[50, 25, 42]"
    report = await rollouts.get_grade_report(cluster.db, result.rollout)
    assert report is not None and report.score == pytest.approx(1 / 3)
    leases = await sandboxes.rollout_leases(cluster.db, result.rollout)
    assert [(lease.backend, lease.status.value) for lease in leases] == [(IN_PROCESS, "closed")]


async def test_one_that_gives_up_is_graded(cluster: Cluster) -> None:
    cluster.policy.say = lambda rollout, turn: str(turn)
    result = await play(cluster)
    assert (result.stop_reason, result.verdict) == (StopReason.STEP_LIMIT, Verdict.NOT_RESOLVED)
    assert result.reward == 0.0


async def test_a_lost_world_is_opened_again_and_its_steps_are_taken_again(
    cluster: Cluster,
) -> None:
    async def lose_it(rollout: str) -> None:
        if f"{rollout}.t2" in cluster.policy.asked:
            for sandbox in cluster.held.ids():
                await cluster.held.release(sandbox)

    cluster.policy.say = lambda rollout, turn: GUESSES[turn]
    cluster.policy.hold = lose_it
    try:
        result = await play(cluster)
    finally:
        cluster.policy.hold = None
    assert (result.verdict, result.num_turns) == (Verdict.RESOLVED, 4)
    # The second world has taken the guesses of the first.
    assert await rollouts.get_final_patch(cluster.db, result.rollout) == b"[50, 25, 42]"
    leases = await sandboxes.rollout_leases(cluster.db, result.rollout)
    assert len(leases) == 2


async def test_the_next_process_of_a_node_knows_that_its_worlds_are_lost(cluster: Cluster) -> None:
    cluster.policy.say = lambda rollout, turn: GUESSES[turn]
    cluster.policy.gate = asyncio.Event()
    [(node, ours)] = cluster.nodes.items()
    campaign, rollout = await make(cluster)
    handle = await cluster.start(rollout, campaign, group_id(campaign, 0))
    own = f"{rollout.replace('/', '.')}."
    try:
        while not [each for each in ours.held.ids() if each.startswith(own)]:
            await asyncio.sleep(0.05)
        environments = Environments(cluster.backends.with_backends({}))
        held = HeldSandboxes(cluster.db, FactCache(cluster.db), node, environments)
        await held.adopt()
        assert not [each for each in held.ids() if each.startswith(own)]
        await Reaper(cluster.db, node, environments.backends, held).reap()
        [lease] = await sandboxes.rollout_leases(cluster.db, rollout)
        assert lease.status.value == "lost"
        assert IN_PROCESS not in environments.backends
    finally:
        await handle.terminate()
        cluster.policy.gate = None
        await ours.held.release_all()


class ByItsText(SweEnvironment):
    """In the place of Mainspring's: sandboxes as ever, and no test decides."""

    async def grade(self, task: SweTask, result: bytes, place: Place) -> Judged:
        verdict = Verdict.RESOLVED if b"+    return b + a" in result else Verdict.NOT_RESOLVED
        return Judged(verdict, report=GradeReport(score=0.5))


@pytest.mark.parametrize(("fix", "verdict"), [("b + a", "resolved"), ("a + b", "not_resolved")])
async def test_one_that_extends_mainsprings_has_sandboxes(
    cluster: Cluster, fix: str, verdict: str
) -> None:
    said = (bash(f"sed -i 's/a - b/{fix}/' calc.py"), SUBMIT)
    cluster.policy.say = lambda rollout, turn: said[turn]
    rollout, result = await cluster.play(environments={"swe": "test_own_environment:ByItsText"})
    assert (result.stop_reason, result.verdict) == (StopReason.SUBMITTED, verdict)
    # One lease, of the agent's sandbox: this grading needs none.
    [lease] = await sandboxes.rollout_leases(cluster.db, rollout)
    assert (lease.backend, lease.status.value) == (BWRAP, "closed")


class NotMade:
    open = grade = None

    def __init__(self) -> None:
        pass


async def imported(cluster: Cluster, name: str) -> None:
    source = open_source(
        str(EXAMPLE / "tasks.jsonl"), ImportOptions(name=name, id_prefix=f"{name}-")
    )
    report = await import_rows(cluster.db, source.rows(), lambda _: None)
    assert (report.num_new, report.failed) == (3, [])


def evaluation(name: str, source: str, **sections: Any) -> EvaluationConfig:
    asked = load_campaign(EXAMPLE / "campaign.toml")
    given = {"environments": asked.environments, "agent": asked.agent} | sections
    return EvaluationConfig(
        name=name,
        tasks=TasksConfig(source=source),
        policy=PolicyConfig(model="scripted", max_context=100_000, max_new_tokens=1000),
        split="train",
        **given,
    )


async def test_the_example_is_imported_and_evaluated(cluster: Cluster) -> None:
    name = f"eval-{uuid.uuid4().hex[:8]}"
    await imported(cluster, name)
    config = evaluation(name, name)
    # Tasks that cannot be verified need no verification; no backend is asked for.
    campaign = await launch.create(cluster.db, config, Backends({}))
    secrets = {
        each.issue: str(each.data["secret"])
        for each in await tasks.get_tasks(cluster.db, name, "train")
        if isinstance(each, OwnTask)
    }

    def say(rollout: str, turn: int) -> str:
        prompt = bytes(cluster.policy.prompts[f"{rollout}.t{turn}"]).decode()
        [secret] = [secret for issue, secret in secrets.items() if issue in prompt]
        return secret

    cluster.policy.say = say
    handle = await launch.start(cluster.client, cluster.db, campaign)
    await handle.result()
    rows = await rollouts.list_rollouts(cluster.db, campaign=campaign)
    assert [row.verdict for row in rows] == [Verdict.RESOLVED] * 3


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"environments": {}}, r"no environment is named for tasks of the kind 'guess'"),
        ({"environments": {"guess": "nowhere:Game"}}, r"'nowhere:Game' cannot be imported"),
        ({"environments": {"guess": "game"}}, r"no environment is called 'game'"),
        ({"environments": {"guess": "guess:CORRECT"}}, r"is a bytes, expected a class"),
        (
            {"environments": {"guess": "test_own_environment:NotMade"}},
            r"'test_own_environment:NotMade' lacks open, grade",
        ),
        ({"agent": AgentConfig()}, r"the bash agent fixes issues in repositories"),
    ],
)
async def test_one_that_cannot_be_used_is_refused_before_anything_is_stored(
    cluster: Cluster, sections: dict[str, Any], problem: str
) -> None:
    name = f"refused-{uuid.uuid4().hex[:8]}"
    await imported(cluster, name)
    with pytest.raises(UsageError, match=problem):
        await launch.create(cluster.db, evaluation(name, name, **sections))
    assert await campaigns.find(cluster.db, CampaignId(name)) is None


async def test_its_tasks_are_not_verified(cluster: Cluster) -> None:
    name = f"verify-{uuid.uuid4().hex[:8]}"
    await imported(cluster, name)
    config = VerificationConfig(name=name, tasks=TasksConfig(source=name), split="train")
    with pytest.raises(UsageError, match="3 tasks are of the kind 'guess'"):
        await launch.create(cluster.db, config)
    assert await campaigns.find(cluster.db, CampaignId(name)) is None


def test_the_example_is_checked(cluster: Cluster) -> None:
    check_environments(load_campaign(EXAMPLE / "campaign.toml"))
    assert json.loads((EXAMPLE / "tasks.jsonl").read_text().splitlines()[0])["kind"] == "guess"
