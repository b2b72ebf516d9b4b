"""Which environment plays a task: the campaign's for the task's kind, else Mainspring's.

Invariant: a task names a kind, which is data; only the section [environments] of a configuration
names code. Pure. Imported by nodes, which make environments, and by commands, which check them.
"""

from mainspring.config.run import RunConfig
from mainspring.errors import ConfigError
from mainspring.named import find_class
from mainspring.tasks.swe_task import SWE

ENVIRONMENTS = {SWE: "infra.environments.swe:SweEnvironment"}
"""Those of Mainspring by kind of task, as paths: only sandbox nodes import them."""
METHODS = ("open", "grade")


def environment_of(config: RunConfig, kind: str) -> str:
    """The path of its class. Raises ConfigError when the kind has none."""
    known = ENVIRONMENTS | config.environments
    if kind in known:
        return known[kind]
    raise ConfigError(
        f"no environment is named for tasks of the kind {kind!r}; there are: {', '.join(known)}",
        remedy=f'add to the campaign file: [environments] {kind} = "package.module:Class"',
    )


def check_environments(config: RunConfig) -> None:
    """Raises ConfigError when a class of [environments] cannot be imported or lacks a method."""
    for path in config.environments.values():
        find_class("environment", path, {}, METHODS, "backends")
