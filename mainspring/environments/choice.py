"""Which environment plays a task: the campaign's for the task's kind, else Mainspring's.

Invariant: a task names a kind, which is data; only the section [environments] of a configuration
names code. Pure. Imported by nodes, which make environments, and by commands, which check them.
"""

from collections.abc import Callable
from typing import Any

from mainspring.config.agents.environments import EnvironmentConfig
from mainspring.config.registry import Registry
from mainspring.config.run import RunConfig
from mainspring.environments.protocol import Environment
from mainspring.errors import ConfigError
from mainspring.programs.functions import FUNCTION
from mainspring.programs.profiles.choice import is_program
from mainspring.tasks.swe_task import SWE

OF_KINDS = {SWE: "infra.environments.swe:SweEnvironment"}
"""Those of Mainspring by kind of task, as paths: only sandbox nodes import them."""
OF_FUNCTIONS = "infra.environments.function:FunctionEnvironment"
"""Where a function plays tasks of another kind, and no class is named for the kind."""
ENVIRONMENTS: Registry[Callable[[Any], Environment]] = Registry(
    "environment", takes="backends", methods=("open", "grade")
)
"""Environments of your own, which are named by their paths only."""
JUDGES: Registry[Callable[[Any], Environment]] = Registry(
    "environment", takes="backends", methods=("grade",)
)
"""Where a function is the world."""


def is_world(config: RunConfig, kind: str) -> bool:
    """Whether a function is the whole world of such tasks: it drives what it acts on itself."""
    return config.agent.kind == FUNCTION and kind != SWE


def environment_of(config: RunConfig, kind: str) -> str | EnvironmentConfig:
    """The path of its class, or the section of its service. Raises ConfigError when the kind has
    none."""
    named = {**OF_KINDS, **config.environments}
    if kind in named:
        return named[kind]
    if is_world(config, kind):
        return OF_FUNCTIONS
    raise ConfigError(
        f"no environment is named for tasks of the kind {kind!r}; there are: {', '.join(named)}",
        remedy=f'add to the campaign file: [environments] {kind} = "package.module:Class", or a '
        f"section [environments.{kind}] of a service",
    )


def check_environments(config: RunConfig) -> None:
    """Raises ConfigError when a class of [environments] cannot be imported or lacks a method, and
    for a service that nothing here can play."""
    for kind, named in config.environments.items():
        if not isinstance(named, EnvironmentConfig):
            (JUDGES if is_world(config, kind) else ENVIRONMENTS).check(named)
        elif kind == SWE:
            raise ConfigError(
                f"[environments.{kind}]: tasks of the kind {SWE!r} need a sandbox, which a service "
                "is not",
                remedy="give the section the kind of your tasks as its name",
            )
        elif is_program(config.agent):
            raise ConfigError(
                f"[environments.{kind}]: agent.kind = {config.agent.kind!r} is a program, which "
                "takes no steps in a service",
                remedy='choose an agent that does: "react", "tools", "single", or one of your own; '
                "a function may also ask the service itself, without this section",
            )
