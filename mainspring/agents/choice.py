"""Which agent plays a task: its row's `agent_name`, else the campaign's `agent.kind`.

Invariants: a task names only agents of this project, because its row is data; a configuration may
also name a class of your own. A task that asks for an agent is played by no other one, unless the
campaign has `agent.override`: a run whose `agent.kind` is a program refuses it before it is stored.
Imported wherever a reply is read or a message written.
"""

from collections.abc import Callable

from mainspring.agents.bash import BashAgent
from mainspring.agents.bundled import BundledAgent
from mainspring.agents.program import ProgramAgent
from mainspring.agents.protocol import Agent
from mainspring.config.agent import AgentConfig
from mainspring.config.registry import Registry
from mainspring.errors import ConfigError
from mainspring.programs.functions import find_function
from mainspring.programs.parsing.choice import PARSERS
from mainspring.programs.profiles.choice import PROFILES, is_program, profile_for
from mainspring.programs.profiles.function import FunctionProfile
from mainspring.tasks.task import Task

AGENTS: Registry[Callable[[AgentConfig], Agent]] = Registry(
    "agent",
    (("bash", BashAgent), ("bundled", BundledAgent)),
    takes="config",
    methods=("request", "parse", "is_done"),
    also=PROFILES,
)


def agent_for(config: AgentConfig, task: Task) -> Agent:
    """Raises ConfigError when there is no such agent. Of a program: who reads its replies."""
    if is_program(config):
        return ProgramAgent(config)
    name = config.kind if config.override else task.agent_name or config.kind
    if name not in allowed(config):
        raise ConfigError(
            f"task {task.id} asks for the agent {name!r}, which does not exist",
            remedy=f"the agents are {', '.join(AGENTS)}",
        )
    return AGENTS.make(name, config)


def allowed(config: AgentConfig) -> tuple[str, ...]:
    """Kinds that rows of a run's tasks may ask for: a program plays all of its tasks, or none."""
    if is_program(config):
        return (config.kind,)
    return tuple(dict.fromkeys((*AGENTS, config.kind)))


def check_agent(config: AgentConfig) -> None:
    """Raises ConfigError when `agent.kind` cannot be made, or lacks a method."""
    if is_program(config):
        profile = profile_for(config)
        if isinstance(profile, FunctionProfile):
            find_function(profile.path)
        PARSERS.check(config.tool_parser)
        return
    AGENTS.check(config.kind)
    agent = AGENTS.make(config.kind, config)
    missing = [name for name in ("appends", "tools") if not hasattr(agent, name)]
    if missing:
        raise ConfigError(
            f"agent {config.kind!r} lacks {', '.join(missing)}",
            remedy="its class tells whether its requests append and which tools they offer: add "
            "both, or extend ConversationAgent: see docs/extending.md",
        )
    # It would find no command in any reply, and every rollout would end by format errors.
    if _first_annotation(type(agent).parse) in (str, "str"):
        raise ConfigError(
            f"agent {config.kind!r}: its `parse` takes a str, expected a Reply",
            remedy="write `def parse(self, reply: Reply)` and read `reply.text`: see "
            "docs/extending.md",
        )
    PARSERS.check(config.tool_parser)


def _first_annotation(method: Callable[..., object]) -> object:
    """Annotation of its first argument; None where it has none."""
    return next(iter(getattr(method, "__annotations__", {}).values()), None)
