"""Which environment plays a task: the campaign's for the task's kind, else Mainspring's.

Invariant: a task names a kind, which is data; only the section [environments] of a configuration
names code. Pure. Imported by nodes, which make environments, and by commands, which check them.
"""

from collections.abc import Callable
from typing import Any

from mainspring.config.registry import Registry
from mainspring.config.run import RunConfig
from mainspring.environments.protocol import Environment
from mainspring.errors import ConfigError
from mainspring.programs.functions import FUNCTION
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


def environment_of(config: RunConfig, kind: str) -> str:
    """The path of its class. Raises ConfigError when the kind has none."""
    paths = OF_KINDS | config.environments
    if kind in paths:
        return paths[kind]
    if is_world(config, kind):
        return OF_FUNCTIONS
    raise ConfigError(
        f"no environment is named for tasks of the kind {kind!r}; there are: {', '.join(paths)}",
        remedy=f'add to the campaign file: [environments] {kind} = "package.module:Class"',
    )


def check_environments(config: RunConfig) -> None:
    """Raises ConfigError when a class of [environments] cannot be imported or lacks a method."""
    for kind, path in config.environments.items():
        (JUDGES if is_world(config, kind) else ENVIRONMENTS).check(path)
