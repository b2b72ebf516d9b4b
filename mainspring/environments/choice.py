"""Which environment plays a task: the campaign's for the task's kind, else Mainspring's.

Invariant: a task names a kind, which is data; only the section [environments] of a configuration
names code. Pure. Imported by nodes, which make environments, and by commands, which check them.
"""

from mainspring.config.named import find_class
from mainspring.config.run import RunConfig
from mainspring.errors import ConfigError
from mainspring.programs.functions import FUNCTION
from mainspring.tasks.swe_task import SWE

ENVIRONMENTS = {SWE: "infra.environments.swe:SweEnvironment"}
"""Those of Mainspring by kind of task, as paths: only sandbox nodes import them."""
OF_FUNCTIONS = "infra.environments.function:FunctionEnvironment"
"""Where a function plays tasks of another kind, and no class is named for the kind."""
METHODS = ("open", "grade")
_GRADING = ("grade",)
"""Methods that a class must have where a function is the world."""


def is_world(config: RunConfig, kind: str) -> bool:
    """Whether a function is the whole world of such tasks: it drives what it acts on itself."""
    return config.agent.kind == FUNCTION and kind != SWE


def environment_of(config: RunConfig, kind: str) -> str:
    """The path of its class. Raises ConfigError when the kind has none."""
    known = ENVIRONMENTS | config.environments
    if kind in known:
        return known[kind]
    if is_world(config, kind):
        return OF_FUNCTIONS
    raise ConfigError(
        f"no environment is named for tasks of the kind {kind!r}; there are: {', '.join(known)}",
        remedy=f'add to the campaign file: [environments] {kind} = "package.module:Class"',
    )


def check_environments(config: RunConfig) -> None:
    """Raises ConfigError when a class of [environments] cannot be imported or lacks a method."""
    for kind, path in config.environments.items():
        methods = _GRADING if is_world(config, kind) else METHODS
        find_class("environment", path, {}, methods, "backends")
