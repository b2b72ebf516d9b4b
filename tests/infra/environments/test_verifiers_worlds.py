"""Environments of the real package verifiers, in the Python that has it."""

import asyncio
import json
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from worlds_of_services import NAME, opened, verifiers_section

from infra.environments.gym.services import GymServices
from infra.environments.own import OwnWorld
from infra.sandbox.protocol import SandboxRefused
from mainspring.config.agents.environments import EnvironmentConfig
from mainspring.environments.protocol import CommandResult, EnvironmentBroken, WorldLost
from mainspring.errors import SandboxError
from tests.verifiers_python import (
    CLASSIC,
    ENVIRONMENTS,
    EXAMPLE,
    PRESENT,
    needs_classic,
    needs_verifiers,
)

SECRET = random.Random("guess/3").randint(1, 100)
"""Of task 3 of the example, and of the classic environment of the tests."""


def present(environment: str, folder: Path = ENVIRONMENTS, **fields: Any) -> EnvironmentConfig:
    given = {"python": str(PRESENT), "folder": str(folder), **fields}
    return verifiers_section(environment, **given)


def classic(environment: str, **fields: Any) -> EnvironmentConfig:
    return present(environment, python=str(CLASSIC), **fields)


GUESS = present("guess-v1", EXAMPLE)


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[GymServices]:
    found = GymServices(tmp_path / "environments")
    yield found
    await found.close()


async def taken(world: OwnWorld, *actions: str) -> list[tuple[str, float | None, bool]]:
    found = []
    for number, action in enumerate(actions):
        seen: CommandResult = await world.step(f"s{number}", action, 120.0)
        found.append((seen.output.decode(), seen.reward, seen.is_over))
    return found


async def facts_of(world: OwnWorld) -> Any:
    return json.loads((await world.finish()).result)


@needs_verifiers
async def test_the_example_is_played(services: GymServices) -> None:
    world = await opened(services, GUESS, 3)
    assert await taken(world, "I say 50.", "no idea", "1", str(SECRET)) == [
        ("It is lower than 50.", 0.0, False),
        ("That is no number.", 0.0, False),
        ("It is higher than 1.", 0.0, False),
        ("", 1.0, True),
    ]
    parts = {"rewards": {"guessed": 1.0}, "metrics": {"num_guesses": 4.0}}
    facts = {"score": 1.0, "is_over": True, "num_steps": 4, "parts": parts}
    assert await facts_of(world) == facts
    await world.close()
    # Left before its end, it is scored as verifiers scores what was stopped.
    left = await opened(services, GUESS, 3)
    await taken(left, "50", "1")
    facts = await facts_of(left)
    assert (facts["score"], facts["is_over"]) == (0.0, False)
    assert facts["parts"] == {"rewards": {"guessed": 0.0}, "metrics": {"num_guesses": 2.0}}
    await left.close()
    with pytest.raises(SandboxRefused, match=r"number 64: the taskset has 64 tasks"):
        await opened(services, GUESS, 64)


@needs_verifiers
async def test_worlds_are_apart_and_the_same_in_another_process(services: GymServices) -> None:
    async def played(number: int) -> Any:
        world = await opened(services, GUESS, number)
        seen = await taken(world, "50", "60", "70", "80")
        await world.close()
        return seen

    first = await asyncio.gather(*(played(number) for number in range(16)))
    assert len({str(seen) for seen in first}) > 2
    process = services.of("c", NAME, GUESS).process
    assert process is not None and process.pid is not None
    pid = process.pid
    world = await opened(services, GUESS, 3)
    await taken(world, "50")
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorldLost):
        await taken(world, "50", "60")
    await world.close()
    assert await asyncio.gather(*(played(number) for number in reversed(range(16)))) == first[::-1]
    assert not psutil.pid_exists(pid)


@needs_verifiers
async def test_tools_of_the_environment_are_called(services: GymServices) -> None:
    config = present("desk-v1")
    shown = await first_text(services, config, 0)
    assert "You are at a desk. What is in the desk? These tools can be called" in shown
    world = await opened(services, config, 0)
    drawer = {"name": "desk_tools_open_drawer", "arguments": {"name": "left"}}
    unknown = {"name": "drawer", "arguments": {}}
    actions = (json.dumps(drawer), json.dumps(unknown), "There is a coin in it.")
    assert await taken(world, *actions) == [
        ("A coin.", 0.0, False),
        ("error: there is no tool 'drawer'; there are: desk_tools_open_drawer", 0.0, False),
        ("", 0.75, True),
    ]
    assert (await facts_of(world))["parts"]["rewards"] == {"found": 0.5, "looked": 0.25}
    await world.close()


async def first_text(services: GymServices, config: EnvironmentConfig, number: int) -> str:
    """What is shown first, as the check of a task's issue tells it."""
    service = services.of("c", NAME, config)
    await service.running()
    ident = await service.take_id(number)
    async with service.asking() as client:
        first = await client.reset(ident, number, 120.0)
    await service.give_back(ident, service.life)
    return " ".join(first.observation.split())


@needs_verifiers
async def test_what_is_wrong_with_a_task_is_named_and_no_score(services: GymServices) -> None:
    config = present("odd-v1")
    world = await opened(services, config, 0)
    assert await taken(world, "yes") == [("", 1.0, True)]
    await world.close()
    left = await opened(services, config, 0)
    facts = await facts_of(left)
    assert (facts["score"], facts["parts"]["rewards"]) == (0.0, {"said_yes": 0.0})
    await left.close()
    with pytest.raises(SandboxError, match=r"HTTP 500: TaskError: task setup: OSError: no table"):
        await opened(services, config, 1)
    with pytest.raises(SandboxRefused, match=r"task 4 of environment 'odd-v1' needs a container"):
        await opened(services, config, 4)
    # It has no end, and what it draws as it is loaded depends on the task's number alone.
    drawn = [await first_text(services, config, number) for number in (900, 70)]
    faults = {
        2: (WorldLost, r"TaskError: task OddTask scoring: KeyError: 'answer'"),
        3: (EnvironmentBroken, r"gave reward = nan, which is no reward"),
        5: (WorldLost, r"(no answer|not logged in)"),
    }
    for number, (fault, told) in faults.items():
        world = await opened(services, config, number)
        with pytest.raises(fault, match=told):
            await taken(world, "yes")
        await world.close()
    # The last of them ended the process.
    again = [await first_text(services, config, number) for number in (70, 900)]
    assert again == drawn[::-1] and again[0] != again[1]


@needs_verifiers
@pytest.mark.parametrize(
    ("fails", "told"),
    [
        ("raises", r"the taskset cannot be loaded: FileNotFoundError: questions\.jsonl"),
        ("ends", r"the taskset cannot be loaded: SystemExit: not logged in"),
    ],
)
async def test_a_taskset_that_cannot_be_loaded_is_named(
    fails: str, told: str, services: GymServices
) -> None:
    with pytest.raises(SandboxError, match=told):
        await opened(services, present("odd-v1", args={"fails": fails}), 0)


@needs_verifiers
@pytest.mark.parametrize(
    ("environment", "args", "told"),
    [
        ("nowhere-v1", {}, r"taskset 'nowhere-v1' not found \(tried to import 'nowhere_v1'\)"),
        (
            "odd-v1",
            {"hwo": 1, "highest": "many"},
            r"'odd-v1': args\.highest: Input should be a valid integer.*; args\.hwo: Extra inputs",
        ),
        ("two-seats-v1", {}, r"has the seats buyer, seller; one with a single seat can be played"),
        ("pinned-v1", {}, r"asks for the harness 'bash', a program that would run what the policy"),
        ("classic-guess", {}, r"one from before verifiers 0\.4 needs 'verifiers>=0\.3\.1,<0\.4'"),
    ],
)
async def test_an_environment_that_cannot_be_played_is_named_once(
    environment: str, args: dict[str, Any], told: str, services: GymServices
) -> None:
    config = present(environment, args=args)
    for _ in range(2):
        with pytest.raises(EnvironmentBroken, match=told):
            await opened(services, config, 0)
    log = next(services.folder.iterdir()).read_text()
    assert log.count(f"environment '{environment}'") == 1  # not started again


@needs_classic
async def test_an_environment_of_the_classic_form_is_played(services: GymServices) -> None:
    config = classic("classic-guess", args={"num_tasks": 4})
    world = await opened(services, config, 3)
    assert await taken(world, "50", str(SECRET)) == [
        ("It is lower than 50.", 0.0, False),
        ("", 1.0, True),
    ]
    assert (await facts_of(world))["parts"]["metrics"]["num_guesses"] == 2.0
    await world.close()
    left = await opened(services, config, 3)
    await taken(left, "50")
    facts = await facts_of(left)
    assert (facts["score"], facts["parts"]["metrics"]["won"]) == (0.0, 0.0)
    await left.close()
    with pytest.raises(SandboxRefused, match=r"the data set has 5 rows"):
        await opened(services, config, 5)


@needs_classic
async def test_tools_of_the_classic_form_are_called(services: GymServices) -> None:
    world = await opened(services, classic("classic-guess", args={"tools": True}), 0)
    call = '{"name": "double", "arguments": {"number": 5}}'
    assert await taken(world, call, "It is 10.") == [("10", 0.0, False), ("", 1.0, True)]
    await world.close()


@needs_classic
@pytest.mark.parametrize(
    ("environment", "args", "told"),
    [
        ("classic-guess", {"hwo": 1}, r"got an unexpected keyword argument 'hwo'"),
        ("odd-v1", {}, r"has no load_environment, which verifiers 0\.3\.1 wants"),
    ],
)
async def test_the_classic_form_has_refusals_of_its_own(
    environment: str, args: dict[str, Any], told: str, services: GymServices
) -> None:
    with pytest.raises(EnvironmentBroken, match=told):
        await opened(services, classic(environment, args=args), 0)
