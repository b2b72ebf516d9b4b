"""Which agent plays a task: its row's `agent_name`, else the campaign's `agent.kind`.

Invariant: a task names only agents of this project, because its row is data; a configuration may
also name a class of your own. Imported wherever a reply is read or a message written.
"""

from collections.abc import Callable
from typing import Any

from mainspring.agents.bash import BashAgent
from mainspring.agents.bundled import BundledAgent
from mainspring.agents.protocol import Agent
from mainspring.config.agent import AgentConfig
from mainspring.errors import ConfigError
from mainspring.named import find
from mainspring.tasks.task import Task

AGENTS: dict[str, Callable[[AgentConfig], Agent]] = {"bash": BashAgent, "bundled": BundledAgent}
METHODS = ("opening", "parse", "after", "is_done")


def agent_for(config: AgentConfig, task: Task) -> Agent:
    """Raises ConfigError when there is no such agent."""
    if task.agent_name and task.agent_name not in AGENTS:
        raise ConfigError(
            f"task {task.id} asks for the agent {task.agent_name!r}, which does not exist",
            remedy=f"the agents are {', '.join(AGENTS)}",
        )
    make: Any = find("agent", task.agent_name or config.kind, AGENTS)
    return make(config)


def check_agent(config: AgentConfig) -> None:
    """Raises ConfigError when `agent.kind` cannot be made, or lacks a method."""
    make = find("agent", config.kind, AGENTS)
    if not callable(make):
        raise ConfigError(
            f"agent {config.kind!r} is a {type(make).__name__}, expected a class",
            remedy="write it as `class Name: def __init__(self, config)`",
        )
    try:
        made = make(config)
    except Exception as error:
        raise ConfigError(
            f"agent {config.kind!r} cannot be made: {type(error).__name__}: {error}",
            remedy="its class takes the section [agent] of the configuration as one argument",
        ) from error
    missing = [name for name in METHODS if not callable(getattr(made, name, None))]
    if missing:
        raise ConfigError(
            f"agent {config.kind!r} lacks {', '.join(missing)}",
            remedy=f"an agent has the methods {', '.join(METHODS)}: see docs/extending.md",
        )
