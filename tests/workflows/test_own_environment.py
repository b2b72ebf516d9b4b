"""The example environment plays rollouts on a real node, and whatever breaks it is survived."""

import asyncio
import json
import sys
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster

from cli.operations import campaign_launch as launch
from infra.db import campaigns, groups, rollouts, sandboxes, tasks, turns
from infra.db.cache import Known
from infra.environments.hosted import Environments
from infra.sandbox.backends import Backends
from infra.sources.importing import import_rows
from infra.sources.protocol import ImportOptions
from infra.sources.resolve import open_source
from mainspring.config.agent import AgentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluation import EvaluationConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.reading import load_campaign
from mainspring.config.tasks import TasksConfig
from mainspring.config.verification import VerificationConfig
from mainspring.environments.choice import check_environments
from mainspring.environments.protocol import CommandResult, Finished, WorldLost
from mainspring.errors import ConfigError, UsageError
from mainspring.ids import CampaignId, RolloutId, TaskId, group_id, rollout_id
from mainspring.protocol.rollout import RolloutResult
from mainspring.sandbox_choice import IN_PROCESS
from mainspring.status import GroupKind, StopReason, Verdict
from mainspring.tasks.own_task import OwnTask
from node.held_sandboxes import HeldSandboxes
from node.reaper import Reaper

EXAMPLE = Path(__file__).parents[2] / "examples" / "own-environment"
AGENT = "guess:GuessAgent"
ENVIRONMENT = "guess:GuessEnvironment"
GUESSES = ("50", "what?", "25", "42")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    yield
    sys.modules.pop("guess", None)


def config_of(name: str, environment: str = ENVIRONMENT, **agent: Any) -> CampaignConfig:
    return CampaignConfig(
        name=name,
        agent=AgentConfig(kind=AGENT, step_limit=8, **agent),
        environments={"guess": environment},
        policy=PolicyConfig(model="scripted", max_context=100_000, max_new_tokens=1000),
    )


async def make(
    cluster: Cluster, environment: str = ENVIRONMENT, **agent: Any
) -> tuple[CampaignId, RolloutId]:
    """A campaign with one task, the number 42, and one rollout."""
    name = f"guess-{uuid.uuid4().hex[:8]}"
    campaign, group = CampaignId(name), group_id(CampaignId(name), 0)
    task = OwnTask(
        id=TaskId(name),
        kind="guess",
        source="tests",
        split="train",
        issue="It is below 100.",
        data={"secret": 42},
    )
    await campaigns.create(cluster.db, config_of(name, environment, **agent))
    await tasks.put_tasks(cluster.db, [task])
    rollout = rollout_id(group, 0)
    await groups.create_group(
        cluster.db,
        group,
        campaign,
        GroupKind.TRAIN,
        policy_version=0,
        split="train",
        index=0,
        task=task.id,
        rollouts=[groups.NewRollout(rollout, task.id, 0, 1.0)],
    )
    return campaign, rollout


async def play(cluster: Cluster, environment: str = ENVIRONMENT, **agent: Any) -> RolloutResult:
    campaign, rollout = await make(cluster, environment, **agent)
    handle = await cluster.start(rollout, campaign, group_id(campaign, 0))
    return await handle.result()


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
        held = HeldSandboxes(cluster.db, Known(cluster.db), node, environments)
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


class _World:
    def __init__(self, step: Callable[[str], Awaitable[Any]]) -> None:
        self._step = step

    async def step(self, step_id: str, command: str, timeout_s: float) -> Any:
        return await self._step(command)

    async def finish(self) -> Any:
        return b"no Finished"

    async def close(self) -> None:
        pass


def _environment(step: Callable[[str], Awaitable[Any]]) -> type:
    class Made:
        def __init__(self, backends: Any) -> None:
            pass

        async def open(self, task: Any, place: Any) -> _World:
            return _World(step)

        async def grade(self, task: Any, result: bytes, place: Any) -> Any:
            raise AssertionError("nothing is graded")

    return Made


async def _raises(command: str) -> CommandResult:
    raise KeyError("secret")


async def _gives_text(command: str) -> str:
    return "higher"


async def _times_out_by_itself(command: str) -> CommandResult:
    raise TimeoutError("its own")


async def _gives_long_text(command: str) -> CommandResult:
    return CommandResult(0, b"correct" if command == "9" else b"x" * (2 << 20))


async def _never_ends(command: str) -> CommandResult:
    await asyncio.sleep(3600)
    raise AssertionError("it was cancelled")


async def _is_lost(command: str) -> CommandResult:
    raise WorldLost("the game's server has ended")


Raises = _environment(_raises)
GivesText = _environment(_gives_text)
TimesOutByItself = _environment(_times_out_by_itself)
GivesLongText = _environment(_gives_long_text)
NeverEnds = _environment(_never_ends)
IsLost = _environment(_is_lost)


class WorldNotClosed(_World):
    async def finish(self) -> Finished:
        return Finished(b"")

    async def close(self) -> None:
        raise OSError("its socket is gone")


class NotClosed(Raises):
    async def open(self, task: Any, place: Any) -> Any:
        return WorldNotClosed(_gives_long_text)


class NoWorld(Raises):
    async def open(self, task: Any, place: Any) -> Any:
        return None


class NotMade:
    open = grade = None

    def __init__(self) -> None:
        pass


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Raises", "step raised KeyError: 'secret'"),
        ("GivesText", "step gave a str, expected CommandResult"),
        ("TimesOutByItself", "step raised TimeoutError: its own"),
        ("GivesLongText", "finish gave a bytes, expected Finished"),
        ("NoWorld", "open gave a world without step, finish, close"),
    ],
)
async def test_one_that_breaks_its_protocol_ends_the_campaign(
    cluster: Cluster, name: str, problem: str
) -> None:
    cluster.policy.say = lambda rollout, turn: "8" if turn == 0 else "9"
    result = await play(cluster, f"test_own_environment:{name}")
    assert result.stop_reason is StopReason.INFRA_FAULT and result.reward is None
    assert result.broken is not None
    _, ran = await turns.history(cluster.db, result.rollout, 0)
    assert [(len(each.output), each.truncated) for each in ran if each.truncated] == (
        [(1 << 20, True)] if name == "GivesLongText" else []
    )
    assert f"environment 'test_own_environment:{name}': {problem}" in result.broken


async def test_a_node_that_cannot_import_it_ends_the_campaign_by_name(cluster: Cluster) -> None:
    result = await play(cluster, "nowhere_at_all:Game")
    assert result.stop_reason is StopReason.INFRA_FAULT and result.reward is None
    assert result.broken is not None
    assert "environment 'nowhere_at_all:Game' cannot be imported" in result.broken
    assert await sandboxes.rollout_leases(cluster.db, result.rollout) == []


async def test_a_step_that_takes_too_long_is_cancelled_and_reported(cluster: Cluster) -> None:
    cluster.policy.say = lambda rollout, turn: "8"
    result = await play(cluster, "test_own_environment:NeverEnds", command_timeout_s=0.2)
    _, ran = await turns.history(cluster.db, result.rollout, 0)
    assert all(each.timed_out and each.returncode == -1 for each in ran) and len(ran) == 8


async def test_a_world_that_cannot_be_closed_disturbs_no_other(cluster: Cluster) -> None:
    cluster.policy.say = lambda rollout, turn: "9"
    result = await play(cluster, "test_own_environment:NotClosed")
    assert (result.stop_reason, result.verdict) == (StopReason.SUBMITTED, Verdict.NO_PATCH)
    assert (await sandboxes.rollout_leases(cluster.db, result.rollout))[0].status.value == "closed"


async def test_a_world_that_is_always_lost_is_given_up(cluster: Cluster) -> None:
    cluster.policy.say = lambda rollout, turn: "8"
    result = await play(cluster, "test_own_environment:IsLost")
    assert result.stop_reason is StopReason.INFRA_FAULT and result.broken is None
    assert result.fault is not None and "the game's server has ended" in result.fault


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


def test_a_class_that_cannot_be_made_is_refused_by_the_node(cluster: Cluster) -> None:
    config = config_of("c", "test_own_environment:Made")
    task = OwnTask(id=TaskId("t"), kind="guess", source="s", split="train", issue="x")
    with pytest.raises(ConfigError, match="cannot be made: TypeError"):
        Environments(cluster.backends).of(config, task)


class Made:
    """It takes no argument."""

    async def open(self, task: Any, place: Any) -> None: ...

    async def grade(self, task: Any, result: bytes, place: Any) -> None: ...


def test_the_example_is_checked(cluster: Cluster) -> None:
    check_environments(load_campaign(EXAMPLE / "campaign.toml"))
    assert json.loads((EXAMPLE / "tasks.jsonl").read_text().splitlines()[0])["kind"] == "guess"
