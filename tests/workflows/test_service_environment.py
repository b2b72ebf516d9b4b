"""Games of a service over HTTP are played on a real node, and what is wrong with one is named."""

import json
import os
import signal
import uuid
from typing import Any

import pytest
from cluster import Cluster
from service_rollouts import FILE, NUMBER, WINS, config_of, games, make, play, processes_of, says

from cli.operations.checks.checklist_item import State
from cli.operations.checks.task_items import of_the_tasks
from cli.operations.runs import campaign_launch as launch
from infra.db.rollouts import rollouts, turns
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.db.training import batches
from infra.environments.gym import services as gym_services
from infra.sandbox.backends import Backends
from infra.sources.importing import import_rows
from infra.sources.protocol import ImportOptions
from infra.sources.resolve import open_source
from mainspring.config.agents.environments import EnvironmentConfig
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.tasks import TasksConfig
from mainspring.errors import MainspringError, ServiceError, UsageError
from mainspring.ids import CampaignId
from mainspring.status import StopReason, Verdict
from mainspring.trajectories.turn_rewards import TurnRewards
from tests.gym_services import gym, hanging, on_step
from workflows import sandbox_life

HITS = "Hit it.\ntask 16: 0 hits"
"""Issue of the fake service's task."""


def fake_config(url: str, **changed: Any) -> Any:
    environment = {"url": url, "request_timeout_s": 20.0, **changed.pop("environment", {})}
    return config_of(environment=environment, **changed)


async def test_the_example_is_played_and_its_rewards_are_stored(cluster: Cluster) -> None:
    cluster.policy.say = lambda rollout, turn: says(WINS[turn])
    result = await play(cluster)
    # Nothing was submitted: the game was over.
    assert (result.stop_reason, result.verdict) == (StopReason.SUBMITTED, Verdict.RESOLVED)
    assert (result.reward, result.num_turns) == (1.0, 4)
    calls, ran = await turns.history(cluster.db, result.rollout, 0)
    assert [each.command for each in ran] == list(WINS)
    assert [(each.reward, each.is_over) for each in ran] == [
        (0.0, False),
        (0.5, False),
        (0.0, False),
        (0.5, True),
    ]
    shown = bytes(calls[0].prompt_ids).decode()
    assert "You are in room 3. The key is to the right." in shown
    assert "Every reply is one step" in shown
    assert bytes(calls[1].prompt_ids).decode().endswith("You are in room 4. The key is here.")
    left = await rollouts.get_final_patch(cluster.db, result.rollout)
    assert left and json.loads(left) == {"score": 1.0, "is_over": True, "num_steps": 4}
    report = await rollouts.get_grade_report(cluster.db, result.rollout)
    assert report is not None and (report.judge, report.score) == ("agentgym", 1.0)


async def test_rewards_of_steps_are_given_to_their_turns(cluster: Cluster) -> None:
    cluster.policy.say = lambda rollout, turn: says(WINS[turn])
    parts = [{"name": "score"}, {"name": "steps", "weight": 2.0}]
    result = await play(cluster, config_of(reward={"parts": parts}))
    assert result.reward == 1.0 + 2.0
    row = await rollouts.get(cluster.db, result.rollout)
    [of_group] = await batches.load_groups(cluster.db, [row.group])
    given = TurnRewards(1.0, {0: 0.0, 1: 1.0, 2: 0.0, 3: 1.0})
    assert of_group.rollouts[0].turn_rewards == given


async def test_one_that_gives_up_has_the_score_so_far(cluster: Cluster) -> None:
    cluster.policy.say = lambda rollout, turn: says((*WINS[:2], *["go left"] * 9)[turn])
    result = await play(cluster)
    assert (result.stop_reason, result.verdict) == (StopReason.STEP_LIMIT, Verdict.NOT_RESOLVED)
    assert result.reward == 0.5


async def test_the_tools_agent_plays_it(cluster: Cluster) -> None:
    def called(turn: int) -> str:
        call = {"name": "act", "arguments": {"action": WINS[turn]}}
        return f"<tool_call>{json.dumps(call)}</tool_call>"

    cluster.policy.say = lambda rollout, turn: called(turn)
    agent = {"kind": "tools", "tools": ["act"], "prompts": {}}
    result = await play(cluster, config_of(agent=agent))
    assert (result.verdict, result.reward, result.num_turns) == (Verdict.RESOLVED, 1.0, 4)


async def test_one_reply_may_be_the_whole_game(cluster: Cluster) -> None:
    cluster.policy.say = lambda rollout, turn: "hit"
    with gym("tools") as fake:
        environment = {"family": "tools", "resolved_at": 0.9}
        agent = {"kind": "single", "single": "text", "step_limit": 1, "prompts": {}}
        config = fake_config(fake.url, environment=environment, agent=agent)
        result = await play(cluster, config, issue=HITS)
        assert (result.verdict, result.reward, result.num_turns) == (Verdict.RESOLVED, 1.0, 1)


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_service_that_dies_or_hangs_leaves_the_rows_of_an_undisturbed_rollout(
    cluster: Cluster, sign: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gym_services, "LOOK_S", 0.5)
    cluster.policy.say = lambda rollout, turn: says(WINS[turn])
    config = config_of(environment={"request_timeout_s": 2.0})
    expected = await play(cluster, config_of())
    campaign, group, [rollout] = await make(cluster, config)
    killed: list[int] = []

    async def kill(sticky: str) -> None:
        if f"{sticky}.t1" in cluster.policy.asked and not killed:
            [service] = processes_of(campaign)
            killed.append(service.pid)
            os.kill(service.pid, sign)

    cluster.policy.hold = kill
    handle = await cluster.start(rollout, campaign, group)
    result = await handle.result()
    assert result.model_copy(update={"rollout": expected.rollout}) == expected
    history = [await turns.history(cluster.db, each, 0) for each in (expected.rollout, rollout)]
    rows = [
        (calls, [(each.output, each.reward, each.is_over) for each in ran])
        for calls, ran in history
    ]
    assert rows[0] == rows[1]
    assert len(killed) == 1
    assert [each.pid for each in processes_of(campaign)] != killed


async def test_a_lost_world_is_opened_again(cluster: Cluster) -> None:
    async def lose_it(rollout: str) -> None:
        if f"{rollout}.t2" in cluster.policy.asked:
            for sandbox in cluster.held.ids():
                await cluster.held.release(sandbox)

    cluster.policy.say = lambda rollout, turn: says(WINS[turn])
    cluster.policy.hold = lose_it
    result = await play(cluster)
    assert (result.verdict, result.num_turns) == (Verdict.RESOLVED, 4)


async def test_a_service_that_answers_otherwise_at_a_replay_begins_the_rollout_anew(
    cluster: Cluster,
) -> None:
    cluster.policy.say = lambda rollout, turn: says("hit")
    rewards = iter([0.125, 0.25, 0.25])

    def differs(answer: Any) -> Any:
        if answer["done"]:
            return answer
        reward = next(rewards, 0.25)
        return (
            {"error": "lost"}
            if reward == 0.25 and not lost and not lost.append(1)
            else ({**answer, "reward": reward})
        )

    lost: list[int] = []
    with gym("textcraft") as fake:
        fake.spoil = on_step(differs)
        result = await play(cluster, fake_config(fake.url), issue=HITS)
        assert (result.verdict, result.reward) == (Verdict.RESOLVED, 1.0)
        # The first epoch's reward is not that of its replay: never a mixture of both.
        row = await cluster.row(result.rollout)
        assert row.epoch == 1
        _, ran = await turns.history(cluster.db, result.rollout, 1)
        assert sum(each.reward or 0.0 for each in ran) == 1.0


async def test_a_reward_that_is_no_number_ends_the_campaign_by_name(cluster: Cluster) -> None:
    cluster.policy.say = lambda rollout, turn: says("hit")
    with gym("textcraft") as fake:
        fake.spoil = on_step(lambda answer: {**answer, "reward": float("nan")})
        result = await play(cluster, fake_config(fake.url), issue=HITS)
        assert result.stop_reason is StopReason.INFRA_FAULT and result.reward is None
        assert result.broken is not None
        assert f"POST {fake.url}/step gave reward = nan, which is no reward" in result.broken
        _, ran = await turns.history(cluster.db, result.rollout, 0)
        assert ran == []


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda answer: -500, "answered HTTP 500: oops"),
        (hanging(0.4), "did not answer within 0.2 s"),
        (lambda answer: {"error": "0"}, "has lost its world"),
    ],
)
async def test_one_that_always_fails_is_masked_by_name(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, spoil: Any, told: str
) -> None:
    monkeypatch.setattr(sandbox_life, "MAX_LIVES", 2)
    cluster.policy.say = lambda rollout, turn: says("hit")
    with gym("textcraft") as fake:
        fake.spoil = on_step(spoil)
        limit_s = 0.2 if "within" in told else 20.0
        config = fake_config(fake.url, environment={"request_timeout_s": limit_s})
        result = await play(cluster, config, issue=HITS)
        assert (result.stop_reason, result.reward) == (StopReason.INFRA_FAULT, None)
        assert result.broken is None and result.fault is not None and told in result.fault
        assert fake.url in result.fault


async def test_one_whose_command_does_not_run_ends_the_campaign_by_name(cluster: Cluster) -> None:
    command = ["{python}", "-c", "raise SystemExit('no such table')", "{port}"]
    result = await play(cluster, config_of(environment={"command": command}))
    assert (result.stop_reason, result.reward) == (StopReason.INFRA_FAULT, None)
    assert result.broken is not None
    assert "environment rooms: its service died 4 times" in result.broken
    assert "no such table" in result.broken and "environments.rooms.command" in result.broken


async def test_a_task_that_shows_another_beginning_is_masked_by_name(cluster: Cluster) -> None:
    cluster.policy.say = lambda rollout, turn: says(WINS[turn])
    result = await play(cluster, issue="You are in room 1.")
    assert (result.stop_reason, result.reward) == (StopReason.INFRA_FAULT, None)
    assert result.fault is not None and "its issue does not hold what environment" in result.fault


async def imported(cluster: Cluster, name: str) -> None:
    options = ImportOptions(name=name, id_prefix=f"{name}-")
    report = await import_rows(cluster.db, open_source(str(FILE), options).rows(), lambda _: None)
    assert (report.num_new, report.failed) == (80, [])


def evaluation(name: str, **changed: Any) -> EvaluationConfig:
    config = config_of(**changed)
    return EvaluationConfig(
        name=name,
        tasks=TasksConfig(source=name),
        split="heldout",
        policy=config.policy,
        agent=config.agent,
        environments=config.environments,
        reward=config.reward,
    )


async def test_the_example_is_imported_and_evaluated(cluster: Cluster) -> None:
    name = f"eval-{uuid.uuid4().hex[:8]}"
    await imported(cluster, name)
    trained = config_of(tasks={"source": name}, evaluation={"splits": ["heldout"]})
    items = await of_the_tasks(trained, cluster.db)
    assert [(item.state, item.found) for item in items if item.what.startswith("tasks")] == [
        (State.OK, f"{number} of {number} are of kinds that need no verification")
        for number in (64, 16)
    ]
    first = (await tasks.get_tasks(cluster.db, name, "train"))[NUMBER]
    assert first.issue == games()[NUMBER].issue
    campaign = await launch.create(cluster.db, evaluation(name), Backends({}))
    cluster.policy.say = lambda rollout, turn: says("go left")
    handle = await launch.start(cluster.client, cluster.db, campaign)
    await handle.result()
    rows = await rollouts.list_rollouts(cluster.db, campaign=campaign)
    assert [row.reward for row in rows] == [0.0] * 16
    assert {row.verdict for row in rows} == {Verdict.NOT_RESOLVED}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"agent": {"tools": ["act", "bash", "submit"], "react": {}}},
            r"agent\.tools has bash, submit, which need a sandbox",
        ),
        ({"agent": {"tools": ["act", "view"]}}, r"agent\.react\.action_input = \"\" puts"),
        ({"agent": {"kind": "bash"}}, r"the bash agent fixes issues in repositories"),
        (
            {"agent": {"kind": "command", "options": {"command": "true"}}},
            r"'command' is a program, which takes no steps in a service",
        ),
    ],
)
async def test_what_cannot_be_played_is_refused_before_anything_is_stored(
    cluster: Cluster, changed: dict[str, Any], told: str
) -> None:
    name = f"refused-{uuid.uuid4().hex[:8]}"
    await imported(cluster, name)
    config = evaluation(name, **changed)
    with pytest.raises(UsageError, match=told):
        await launch.create(cluster.db, config)
    assert await campaigns.find(cluster.db, CampaignId(name)) is None


@pytest.mark.parametrize(
    ("spoil", "error", "told"),
    [
        (lambda route, answer: None, ServiceError, r"/create: no answer"),
        (lambda route, answer: -500, ServiceError, r"/create answered HTTP 500"),
        (lambda route, answer: hanging(1.0)(answer), ServiceError, r"did not answer within 0\.5 s"),
        (lambda route, answer: [answer], UsageError, r"/create gave .*, expected an object"),
        (lambda route, answer: b"<html>", UsageError, r"/create answered no JSON: <html>"),
        (lambda route, answer: b"", UsageError, r"/create answered no JSON: ''"),
        (
            lambda route, answer: answer if route == "/create" else {**answer, "done": True},
            UsageError,
            r"a world of the task's number \d+ that has ended before its first step",
        ),
        (
            on_step(lambda answer: {**answer, "reward": float("nan")}),
            UsageError,
            r"/step gave reward = nan, which is no reward",
        ),
        (
            on_step(lambda answer: {"state": "", "reward": 0, "done": False}),
            UsageError,
            r"/step gave no observation; it has state, reward, done",
        ),
        (lambda route, answer: answer, UsageError, r"its issue does not hold what environment"),
    ],
)
async def test_a_service_that_cannot_be_used_here_is_refused_before_anything_is_stored(
    cluster: Cluster, spoil: Any, error: type[MainspringError], told: str
) -> None:
    name = f"tried-{uuid.uuid4().hex[:8]}"
    await imported(cluster, name)
    with gym("textcraft") as fake:
        fake.spoil = spoil
        shows_another = "its issue" in told
        environment = {
            "url": fake.url,
            "request_timeout_s": 0.5 if "within" in told else 20.0,
            "same_opening": shows_another,
        }
        config = evaluation(name, environment=environment)
        with pytest.raises(error, match=told):
            await launch.create(cluster.db, config, cluster.backends)
        assert await campaigns.find(cluster.db, CampaignId(name)) is None
        fake.spoil = lambda route, answer: answer
        if not shows_another:
            await launch.create(cluster.db, config, cluster.backends)


async def test_a_command_that_does_not_run_here_is_refused_before_anything_is_stored(
    cluster: Cluster,
) -> None:
    name = f"tried-{uuid.uuid4().hex[:8]}"
    await imported(cluster, name)
    command = ["{python}", "-c", "raise SystemExit('no such table')", "{port}"]
    with pytest.raises(UsageError, match=r"nothing was stored: .*no such table"):
        config = evaluation(name, environment={"command": command})
        await launch.create(cluster.db, config, cluster.backends)
    assert await campaigns.find(cluster.db, CampaignId(name)) is None
    await launch.create(cluster.db, evaluation(name), cluster.backends)
    assert processes_of(name) == []


@pytest.mark.parametrize(
    ("python", "told"),
    [("/no/python", r"cannot be started: .*/no/python"), ("", r"has no verifiers: run .* -m pip")],
)
async def test_a_python_without_verifiers_is_refused_before_anything_is_stored(
    cluster: Cluster, python: str, told: str
) -> None:
    name = f"tried-{uuid.uuid4().hex[:8]}"
    await imported(cluster, name)
    fields = {"kind": "verifiers", "environment": "rooms-v1", "python": python}
    section = EnvironmentConfig.model_validate(fields)
    config = evaluation(name).model_copy(update={"environments": {"rooms": section}})
    with pytest.raises(UsageError, match=rf"nothing was stored: .*{told}"):
        await launch.create(cluster.db, config, cluster.backends)
    assert await campaigns.find(cluster.db, CampaignId(name)) is None
