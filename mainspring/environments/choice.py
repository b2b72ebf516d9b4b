"""Which environment plays a task: the campaign's for the task's kind, else Mainspring's.

Invariant: a task names a kind, which is data; only the section [environments] of a configuration
names code. Pure. Imported by nodes, which make environments, and by commands, which check them.
"""

from collections.abc import Callable
from typing import Any

from mainspring.agents.choice import agent_config
from mainspring.agents.tools.acting import ACT
from mainspring.agents.tools.choice import OF_A_SHELL
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.agents.environments import EnvironmentConfig
from mainspring.config.registry import Registry
from mainspring.config.run import RunConfig
from mainspring.environments.protocol import Environment
from mainspring.errors import ConfigError
from mainspring.programs.functions import FUNCTION
from mainspring.programs.profiles.choice import is_program, is_remote
from mainspring.tasks.answer import ANSWER, answers_of
from mainspring.tasks.any_task import AnyTask
from mainspring.tasks.own_task import OwnTask
from mainspring.tasks.swe_task import SWE

OF_KINDS = {
    SWE: "infra.environments.swe:SweEnvironment",
    ANSWER: "infra.environments.answer:AnswerEnvironment",
}
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


def is_world(config: RunConfig, task: AnyTask) -> bool:
    """Whether a function is the task's whole world: it drives what it acts on itself. Raises
    ConfigError for a task whose agent does not exist."""
    return task.kind != SWE and agent_config(config, task).kind == FUNCTION


def environment_of(config: RunConfig, task: AnyTask) -> str | EnvironmentConfig:
    """The path of its class, or the section of its service. Raises ConfigError when its kind has
    none."""
    kind, named = task.kind, {**OF_KINDS, **config.environments}
    if kind in named:
        return named[kind]
    if is_world(config, task):
        return OF_FUNCTIONS
    raise ConfigError(
        f"no environment is named for tasks of the kind {kind!r}; there are: {', '.join(named)}",
        remedy=f'add to the campaign file: [environments] {kind} = "package.module:Class", or a '
        f"section [environments.{kind}] of a service",
    )


def check_environments(config: RunConfig) -> None:
    """Raises ConfigError when a class of [environments] cannot be imported or lacks a method, and
    for a service that no agent of the run can play."""
    kinds = [agent.kind for agent in config.agent_sections.values()]
    for kind, named in config.environments.items():
        if not isinstance(named, EnvironmentConfig):
            # Which agent plays tasks of the kind, their rows tell: see `check_world`.
            may_be_world = FUNCTION in kinds and kind != SWE
            (JUDGES if may_be_world else ENVIRONMENTS).check(named)
        elif kind == SWE:
            raise ConfigError(
                f"[environments.{kind}]: tasks of the kind {SWE!r} need a sandbox, which a service "
                "is not",
                remedy="give the section the kind of your tasks as its name",
            )
        elif all(is_program(agent) for agent in config.agent_sections.values()):
            named_by = [f"{section}.kind" for section in config.agent_sections]
            listed = " and ".join(map("{} = {!r}".format, named_by, kinds))
            what = "is a program, which takes" if len(kinds) == 1 else "are programs, which take"
            raise ConfigError(
                f"[environments.{kind}]: {listed} {what} no steps in a service",
                remedy='choose an agent that does: "react", "tools", "single", or one of your own; '
                "a function may also ask the service itself, without this section",
            )


def check_world(config: RunConfig, task: AnyTask) -> None:
    """Raises ConfigError where nothing plays the task: no environment is named for its kind, the
    one that is named needs an agent that takes steps, or the program that it asks for a sandbox."""
    agent = agent_config(config, task)
    if task.kind == SWE or is_remote(agent):
        return
    named = environment_of(config, task)
    if isinstance(named, EnvironmentConfig) and is_program(agent):
        raise ConfigError(
            f"[environments.{task.kind}] is a service, in which the program {agent.kind!r} "
            "takes no steps",
            remedy="name an agent that does",
        )
    if task.kind == ANSWER and named == OF_KINDS[ANSWER] and isinstance(task, OwnTask):
        answers_of(task)
        _check_answering(agent, task)
    if isinstance(named, EnvironmentConfig) or is_world(config, task):
        return
    if is_program(agent):
        raise ConfigError(
            f"the program {agent.kind!r} needs a sandbox",
            remedy=f"choose tasks of the kind {SWE!r}, or an agent",
        )
    if named not in OF_KINDS.values():
        ENVIRONMENTS.check(named)


def _check_answering(agent: AgentConfig, task: OwnTask) -> None:
    """Raises ConfigError for an agent whose commands of a shell would be taken for the answer."""
    of_shell = sorted(OF_A_SHELL.intersection(agent.tools))
    if agent.kind in ("react", "tools") and of_shell:
        raise ConfigError(
            f"task {task.id} is answered without a sandbox, and agent.tools has "
            f"{', '.join(of_shell)}, which need one",
            remedy=f'set agent.tools = ["{ACT}"], which gives the answer, beside tools of your own '
            "that run in Python",
        )
