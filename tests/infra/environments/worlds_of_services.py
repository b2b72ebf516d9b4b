"""Worlds of one service, opened as a node opens them."""

from typing import Any

from infra.environments.gym.environment import GymEnvironment
from infra.environments.gym.services import GymServices
from infra.environments.own import OwnEnvironment, OwnWorld
from mainspring.config.agents.environments import EnvironmentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.environments.protocol import Place
from mainspring.ids import RolloutId, SandboxId, TaskId
from mainspring.tasks.own_task import OwnTask

NAME = "stub"


def verifiers_section(environment: str, **fields: Any) -> EnvironmentConfig:
    given = {"kind": "verifiers", "environment": environment, "same_opening": False}
    return EnvironmentConfig.model_validate(given | fields)


def place_of() -> Place:
    async def lease(backend: str) -> None:
        pass

    run = CampaignConfig(name="c", policy=PolicyConfig(model="m"))
    return Place(SandboxId("s"), RolloutId("r"), run, {}, lease)


def task_of(number: int) -> OwnTask:
    return OwnTask(
        id=TaskId(f"t-{number}"),
        kind=NAME,
        source="s",
        split="train",
        issue="",
        data={"data_idx": number},
    )


def environment_of(services: GymServices, config: EnvironmentConfig) -> OwnEnvironment:
    return OwnEnvironment(NAME, GymEnvironment(NAME, config, services), ends_steps=True)


async def opened(services: GymServices, config: EnvironmentConfig, number: int) -> OwnWorld:
    return await environment_of(services, config).open(task_of(number), place_of())
