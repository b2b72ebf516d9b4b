"""Services in all of AgentGym's forms are played to their end, and broken ones are named."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from infra.environments.gym.environment import GymEnvironment
from infra.environments.gym.services import GymServices, WorldsFull
from infra.environments.own import OwnEnvironment, OwnWorld
from infra.sandbox.protocol import SandboxRefused
from mainspring.config.agents.environments import EnvironmentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.environments.protocol import EnvironmentBroken, Place, WorldLost
from mainspring.errors import SandboxError
from mainspring.ids import RolloutId, SandboxId, TaskId
from mainspring.status import FaultKind, Verdict
from mainspring.tasks.own_task import OwnTask
from tests.gym_services import BROKEN, LOST, FakeService, gym, on_step

FAMILIES = (
    *("textcraft", "babyai", "sciworld", "alfworld"),
    *("webshop", "sqlgym", "searchqa", "tools"),
)
REWARDS = {
    "babyai": [1.0, 1.0, 1.0],
    "sciworld": [0.33, 0.33, 0.33],
    "tools": [1.0, 0.0, 0.0],
}
"""Of three hits, where they are not one reward at the end."""


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[GymServices]:
    found = GymServices(tmp_path)
    yield found
    await found.close()


def config_of(fake: FakeService, **fields: Any) -> EnvironmentConfig:
    given = {"kind": "agentgym", "family": fake.family, "url": fake.url, "request_timeout_s": 20.0}
    return EnvironmentConfig.model_validate(given | fields)


def task_of(number: Any = 5, issue: str | None = None) -> OwnTask:
    text = f"Hit it.\ntask {number}: 0 hits" if issue is None else issue
    data = {} if number is None else {"data_idx": number}
    return OwnTask(
        id=TaskId("t"), kind="hits", source="tests", split="train", issue=text, data=data
    )


async def _no_lease(backend: str) -> None:
    pass


def place_of() -> Place:
    run = CampaignConfig(name="c", policy=PolicyConfig(model="m"))
    return Place(SandboxId("s"), RolloutId("r"), run, {}, _no_lease)


def environment_of(services: GymServices, config: EnvironmentConfig) -> OwnEnvironment:
    return OwnEnvironment("hits", GymEnvironment("hits", config, services), ends_steps=True)


async def opened(services: GymServices, fake: FakeService, **fields: Any) -> OwnWorld:
    issue = "Hit thrice.\ntask 5: 0 hits\nAVAILABLE ACTIONS: hit,wait"
    if fake.family != "sciworld" and fake.family != "alfworld":
        issue = "Hit it.\ntask 5: 0 hits"
    environment = environment_of(services, config_of(fake, **fields))
    return await environment.open(task_of(issue=issue), place_of())


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_service_of_each_family_is_played(family: str, services: GymServices) -> None:
    with gym(family) as fake:
        fields = {"scale": 1.0} if family == "babyai" else {}
        world = await opened(services, fake, **fields)
        steps = [await world.step(f"s{n}", "hit", 60.0) for n in range(3)]
        ends = ["task 5: 1 hits", "task 5: 2 hits", "task 5: 3 hits"]
        assert [step.output.decode().split("\n")[0] for step in steps] == ends
        assert [step.is_over for step in steps] == [False, False, True]
        rewards = [step.reward for step in steps]
        assert rewards == pytest.approx(REWARDS.get(family, [0.0, 0.0, 1.0]))
        if family == "alfworld":
            assert steps[0].output == b"task 5: 1 hits\nAVAILABLE ACTIONS: hit,wait"
        # No step follows the last one.
        later = await world.step("s3", "hit", 60.0)
        assert (later.returncode, later.reward, later.is_over) == (1, 0.0, True)
        assert len([route for route, _ in fake.asked if route == "/step"]) == 3
        finished = await world.finish()
        environment = environment_of(services, config_of(fake, resolved_at=0.98))
        judged = await environment.grade(task_of(), finished.result, place_of())
        assert judged.report.score == pytest.approx(sum(step.reward or 0.0 for step in steps))
        assert judged.verdict is Verdict.RESOLVED
        await world.close()
        await world.close()
        has_close = family in ("textcraft", "babyai", "sciworld", "searchqa")
        assert fake.closed == ([0] if has_close else [])


async def test_a_world_that_is_left_has_the_score_so_far(services: GymServices) -> None:
    with gym("babyai") as fake:
        world = await opened(services, fake)
        await world.step("s0", "hit", 60.0)
        finished = await world.finish()
        assert json.loads(finished.result) == {"score": 1.0, "is_over": False, "num_steps": 1}
        environment = environment_of(services, config_of(fake, resolved_at=2.0))
        judged = await environment.grade(task_of(), finished.result, place_of())
        assert (judged.verdict, judged.report.score) == (Verdict.NOT_RESOLVED, 1.0)
        await world.close()


async def test_rewards_of_single_steps_are_added_up_where_the_section_tells_so(
    services: GymServices,
) -> None:
    with gym("textcraft") as fake:
        fake.spoil = on_step(lambda answer: {**answer, "reward": 0.25})
        world = await opened(services, fake, sums=True)
        rewards = [(await world.step(f"s{n}", "hit", 60.0)).reward for n in range(3)]
        assert rewards == [0.25, 0.25, 0.25]
        assert json.loads((await world.finish()).result)["score"] == 0.75
        await world.close()


async def test_a_step_is_taken_once(services: GymServices) -> None:
    with gym("textcraft") as fake:
        world = await opened(services, fake)
        assert await world.step("s0", "hit", 60.0) == await world.step("s0", "hit", 60.0)
        assert len([route for route, _ in fake.asked if route == "/step"]) == 1
        await world.close()


@pytest.mark.parametrize("name", BROKEN)
async def test_an_answer_that_cannot_be_used_is_named(name: str, services: GymServices) -> None:
    spoil, told = BROKEN[name]
    with gym("textcraft") as fake:
        world = await opened(services, fake)
        fake.spoil = on_step(spoil)
        with pytest.raises(EnvironmentBroken, match=told) as caught:
            await world.step("s0", "hit", 60.0)
        assert f"environment hits: POST {fake.url}/step" in caught.value.message
        assert "[environments.hits]" in caught.value.remedy
        await world.close()


@pytest.mark.parametrize("name", LOST)
async def test_a_step_without_an_answer_loses_its_world(name: str, services: GymServices) -> None:
    spoil, told = LOST[name]
    with gym("textcraft") as fake:
        world = await opened(services, fake)
        fake.spoil = on_step(spoil)
        # Never a command that timed out: the agent would be told what did not happen to it.
        with pytest.raises(WorldLost, match=told):
            await world.step("s0", "hit", 0.5 if name == "hang" else 20.0)
        fake.spoil = lambda route, answer: answer
        await world.close()


async def test_an_action_that_the_service_refuses_ends_no_campaign(services: GymServices) -> None:
    with gym("textcraft") as fake:
        world = await opened(services, fake)
        await world.step("s0", "hit", 60.0)
        fake.spoil = on_step(lambda answer: -422)
        with pytest.raises(WorldLost, match="answered HTTP 422"):
            await world.step("s1", "\udc80", 60.0)
        await world.close()


@pytest.mark.parametrize(
    ("spoil", "fault", "told"),
    [
        (lambda route, answer: -500, FaultKind.NODE_FAILED, "answered HTTP 500"),
        (lambda route, answer: None, FaultKind.ENVIRONMENT_UNREACHABLE, "no answer"),
        (lambda route, answer: {}, FaultKind.CONFIG_UNUSABLE, "gave no id; it has nothing"),
        (lambda route, answer: 3, FaultKind.CONFIG_UNUSABLE, "gave 3, expected an object"),
        (
            lambda route, answer: answer if route == "/create" else {**answer, "id": 9},
            FaultKind.CONFIG_UNUSABLE,
            "was asked for world 0 and answered for 9",
        ),
        (
            lambda route, answer: answer if route == "/create" else {"error": "no such game"},
            FaultKind.TASK_INVALID,
            "refuses the task's number 5: no such game",
        ),
        (
            lambda route, answer: answer if route == "/create" else {**answer, "done": True},
            FaultKind.TASK_INVALID,
            "of the task's number 5 that has ended before its first step",
        ),
        (
            lambda route, answer: answer if route == "/create" else {**answer, "done": "no"},
            FaultKind.CONFIG_UNUSABLE,
            "/reset gave done = no, expected true or false",
        ),
        (
            lambda route, answer: answer if route == "/create" else {**answer, "observation": " "},
            FaultKind.TASK_INVALID,
            "its issue does not hold what environment hits shows first for number 5: ''",
        ),
        (
            lambda route, answer: b"<html>login</html>",
            FaultKind.CONFIG_UNUSABLE,
            "/create answered no JSON: <html>login</html>",
        ),
    ],
)
async def test_a_world_that_cannot_be_opened_is_named(
    spoil: Any, fault: FaultKind, told: str, services: GymServices
) -> None:
    with gym("textcraft") as fake:
        fake.spoil = spoil
        with pytest.raises((SandboxError, EnvironmentBroken), match=told) as caught:
            await opened(services, fake)
        assert caught.value.fault is fault and caught.value.remedy


@pytest.mark.parametrize(
    ("task", "told"),
    [
        (task_of(None), "must have data_idx, a whole number from 0, not nothing"),
        (task_of(True), "not data_idx = True"),
        (task_of("5"), "not data_idx = '5'"),
        (task_of(-1), "not data_idx = -1"),
        (task_of(5, "Hit it."), "its issue does not hold what environment hits shows first"),
        (task_of(2000), "refuses the task's number 2000: list index out of range"),
    ],
)
async def test_a_task_that_cannot_be_played_is_refused(
    task: OwnTask, told: str, services: GymServices
) -> None:
    with gym("textcraft") as fake:
        environment = environment_of(services, config_of(fake))
        with pytest.raises(SandboxRefused, match=told):
            await environment.open(task, place_of())
        # What was opened for it is closed.
        assert len(fake.worlds) == 0


async def test_no_two_rollouts_share_a_world(services: GymServices) -> None:
    with gym("sqlgym", most=2) as fake:
        first, second = [await opened(services, fake) for _ in range(2)]
        with pytest.raises(WorldsFull, match="gave the id 0 twice"):
            await opened(services, fake)
        await first.close()
        third = await opened(services, fake)
        creates = [route for route, _ in fake.asked if route == "/create"]
        assert len(creates) == 3  # an id that is free is used again: there is no close
        await second.close()
        await third.close()


async def test_a_service_has_as_many_worlds_as_its_section_tells(services: GymServices) -> None:
    with gym("textcraft") as fake:
        first = await opened(services, fake, worlds=1)
        with pytest.raises(WorldsFull, match="holds 1 worlds, and all are in use") as caught:
            await opened(services, fake, worlds=1)
        assert caught.value.fault is FaultKind.NODE_FULL
        await first.close()
        await (await opened(services, fake, worlds=1)).close()


async def test_an_address_where_nothing_listens_is_named(services: GymServices) -> None:
    with gym("textcraft") as fake:
        pass
    with pytest.raises(SandboxError, match=r"/create: no answer: ") as caught:
        await opened(services, fake)
    # An outage: rollouts wait for a day.
    assert caught.value.fault is FaultKind.ENVIRONMENT_UNREACHABLE
