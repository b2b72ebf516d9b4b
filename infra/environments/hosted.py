"""The environments of one node, each made once: by kind of task, as a campaign names them.

Invariant: what cannot be made is refused by name, and no other environment takes its place.
"""

from pathlib import Path
from typing import Any, Protocol

from infra.environments.function import FunctionEnvironment
from infra.environments.gym.environment import GymEnvironment
from infra.environments.gym.services import GymServices, Told
from infra.environments.own import OwnEnvironment, OwnWorld
from infra.environments.swe import SweEnvironment, SweWorld
from infra.environments.tooled import PlainHosted, Tooled, ToolWorld
from infra.sandbox.backends import Backends
from infra.sandbox.protocol import SandboxBackend
from mainspring.agents.choice import agent_config
from mainspring.agents.tools.choice import python_tools
from mainspring.config.agents.environments import EnvironmentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.run import RunConfig
from mainspring.environments.choice import (
    ENVIRONMENTS,
    OF_FUNCTIONS,
    OF_KINDS,
    check_environments,
    environment_of,
    is_world,
)
from mainspring.environments.protocol import Environment, Place
from mainspring.programs.profiles.choice import is_program
from mainspring.tasks.any_task import AnyTask
from mainspring.tasks.swe_task import SWE

HostedWorld = SweWorld | OwnWorld | ToolWorld


class Hosted(Environment, Protocol):
    """Methods of an environment that a node needs beside its protocol."""

    async def open(self, task: Any, place: Place) -> HostedWorld: ...

    async def attach(self, task: Any, place: Place, backend: SandboxBackend) -> HostedWorld: ...


class Environments:
    def __init__(
        self, backends: Backends, folder: Path | None = None, told: Told | None = None
    ) -> None:
        """`folder`: of this node alone, for the logs of services that it starts. `told`: of a
        service that failed."""
        self.backends = backends
        self.services = GymServices(folder) if told is None else GymServices(folder, told)
        self.swe = SweEnvironment(backends)
        self._environments: dict[tuple[str, bool], PlainHosted] = {(OF_KINDS[SWE], False): self.swe}
        """By name, and whether a function is the world."""

    def of(self, config: RunConfig, task: AnyTask) -> Hosted:
        """Raises ConfigError."""
        environment = self._plain(config, task)
        # A verification has no agent, and may be of tasks whose agent does not exist.
        plays = isinstance(config, CampaignConfig | EvaluationConfig)
        agent = agent_config(config, task) if plays else config.agent
        paths = python_tools(agent.tools) if plays and not is_program(agent) else {}
        if not paths:
            return environment
        return Tooled(environment, paths, agent.tool_variables, self.services.folder)

    def _plain(self, config: RunConfig, task: AnyTask) -> PlainHosted:
        name = environment_of(config, task)
        if isinstance(name, EnvironmentConfig):
            # Holds nothing: what it asks is the node's, by campaign and name.
            of_service = GymEnvironment(task.kind, name, self.services)
            return OwnEnvironment(task.kind, of_service, ends_steps=True)
        key = name, is_world(config, task)
        if key not in self._environments:
            check_environments(config)
            self._environments[key] = self._make(*key)
        return self._environments[key]

    def _make(self, name: str, of_function: bool) -> PlainHosted:
        if name == OF_FUNCTIONS:
            return OwnEnvironment(name, FunctionEnvironment(None))
        environment = ENVIRONMENTS.make(name, self.backends)
        if of_function:
            return OwnEnvironment(name, FunctionEnvironment(OwnEnvironment(name, environment)))
        return (
            environment
            if isinstance(environment, SweEnvironment)
            else OwnEnvironment(name, environment)
        )
