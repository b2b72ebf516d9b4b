"""Which agent plays a task: the one that its row asks for (`agent_name`), else the section [agent].

Invariants: a task names only sections [agents.NAME], agents and programs of this project by their
names, and tools of this project or of the configuration, because its row is data; a configuration
may also name a class of your own. A task that asks for an agent is played by no other one, unless
the campaign has `agent.override`. Imported wherever a reply is read, a message written or a program
started.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from mainspring.agents.bash import BashAgent
from mainspring.agents.bundled import BundledAgent
from mainspring.agents.contexts.choice import CONTEXTS, context_of
from mainspring.agents.contexts.protocol import Summarising
from mainspring.agents.program import ProgramAgent
from mainspring.agents.prompts import check_prompts
from mainspring.agents.protocol import Agent
from mainspring.agents.react import ReactAgent
from mainspring.agents.single import SingleAgent
from mainspring.agents.tool_calls import ToolsAgent
from mainspring.agents.tools.choice import TOOLS, tools_of
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.agents.prompts import PromptsConfig
from mainspring.config.registry import Registry
from mainspring.config.run import RunConfig
from mainspring.errors import ConfigError
from mainspring.programs.functions import find_function
from mainspring.programs.parsing.choice import PARSERS
from mainspring.programs.profiles.choice import (
    PROFILES,
    check_context,
    context_warning,
    is_program,
    is_remote,
    profile_for,
)
from mainspring.programs.profiles.function import FunctionProfile
from mainspring.programs.profiles.remote import REMOTE
from mainspring.tasks.task import Task

R = TypeVar("R", bound=RunConfig)
AGENTS: Registry[Callable[[AgentConfig], Agent]] = Registry(
    "agent",
    (
        ("bash", BashAgent),
        ("bundled", BundledAgent),
        ("tools", ToolsAgent),
        ("react", ReactAgent),
        ("single", SingleAgent),
    ),
    takes="config",
    methods=("request", "parse", "is_done"),
    also=PROFILES,
)
_FIELD = re.compile(rf"(?<![\w.\[])agent(?=\.(?:{'|'.join(AgentConfig.model_fields)})\b)")
_TABLE = re.compile(r"(?<=\[)agent(?=[.\]])")

OFFER_TOOLS = ("tools", "react")
"""Agents of the table that play with `agent.tools`."""


def agent_for(run: RunConfig, task: Task) -> Agent:
    """Raises ConfigError when there is no such agent. Of a program: who reads its replies."""
    config = agent_config(run, task)
    return ProgramAgent(config) if is_program(config) else AGENTS.make(config.kind, config)


def agent_config(run: RunConfig, task: Task) -> AgentConfig:
    """The section of the agent that plays a task, with the tools that its row names. Raises
    ConfigError where there is none."""
    config = _section_for(run, task)
    if not task.tools or run.agent.override:
        return config
    if is_program(config) or (config.kind in AGENTS and config.kind not in OFFER_TOOLS):
        raise ConfigError(
            f"task {task.id} asks for the tools {', '.join(task.tools)}, and the agent "
            f"{config.kind!r} offers none of Mainspring's",
            remedy=f"play it with {' or '.join(OFFER_TOOLS)}, or set agent.override = true, which "
            "plays every task as [agent] is written",
        )
    known = {
        *TOOLS,
        *run.agent.tools,
        *(name for each in run.agents.values() for name in each.tools),
    }
    if unknown := [name for name in task.tools if name not in known]:
        raise ConfigError(
            f"task {task.id} asks for the tool {unknown[0]!r}, which the configuration does not "
            "name",
            remedy=f"the tools are {', '.join(sorted(known))}; one of your own counts when "
            "agent.tools or a section [agents.NAME] names it",
        )
    return config.model_copy(update={"tools": task.tools})


def _section_for(run: RunConfig, task: Task) -> AgentConfig:
    name = task.agent_name
    if run.agent.override or not name:
        return run.agent
    if name in run.agents:
        return run.agents[name]
    if name == run.agent.kind:
        return run.agent
    if name not in AGENTS and name not in PROFILES:
        raise ConfigError(
            f"task {task.id} asks for the agent {name!r}, which does not exist",
            remedy=f"the agents are {', '.join(allowed(run))}",
        )
    return _by_name(run, name)


def name_of_agent(run: RunConfig, task: Task) -> str:
    """Name of the agent that plays a task, for people: its section's, or its kind."""
    return (None if run.agent.override else task.agent_name) or run.agent.kind


def _by_name(run: RunConfig, kind: str) -> AgentConfig:
    """Section of an agent that has none: its limits are those of [agent]. Texts, version and
    options there are another agent's."""
    others = {"prompts": PromptsConfig(), "version": None, "options": {}}
    return run.agent.model_copy(update={"kind": kind, **others})


def allowed(run: RunConfig) -> tuple[str, ...]:
    """Agents that rows of a run's tasks may ask for."""
    return tuple(dict.fromkeys((*run.agents, *AGENTS, *PROFILES, run.agent.kind)))


def with_asked(run: R, names: Iterable[str]) -> R:
    """The run with a section for each agent that rows ask for by its kind, so that what is asked of
    every section is asked of these as well."""
    if run.agent.override:
        return run
    further = {
        name: _by_name(run, name)
        for name in names
        if name not in run.agents and name != run.agent.kind
    }
    return run.model_copy(update={"agents": {**run.agents, **further}}) if further else run


def outside_agent(run: RunConfig) -> AgentConfig | None:
    """Section of the run's agent that runs elsewhere, where rows may ask for one; a run has one at
    most (`check_agents`)."""
    sections = with_asked(run, (REMOTE,)).agent_sections.values()
    return next(filter(is_remote, sections), None)


def check_agents(run: RunConfig) -> None:
    """Raises ConfigError for a section [agent] or [agents.NAME] that nothing can be played with."""
    check_agent(run.agent)
    for name, config in run.agents.items():
        where = f"[agents.{name}]"
        if (name in AGENTS or name in PROFILES) and config.kind != name:
            raise ConfigError(
                f"{where}: {name!r} is an agent of Mainspring, and the section's kind is "
                f"{config.kind!r}",
                remedy="give the section another name",
            )
        if config.tool_parser != run.agent.tool_parser:
            raise ConfigError(
                f"{where}: tool_parser = {config.tool_parser!r}, and agent.tool_parser = "
                f"{run.agent.tool_parser!r}",
                remedy="the model has one way to write tool calls: set it in [agent]",
            )
        with naming(f"agents.{name}"):
            check_agent(config, f"agents.{name}")
    outside = [section for section, config in run.agent_sections.items() if is_remote(config)]
    if len(outside) > 1:
        raise ConfigError(
            f"[{outside[0]}] and [{outside[1]}] are both of the kind {REMOTE!r}, and an agent "
            "outside that takes a session cannot tell whose it is",
            remedy="keep one of them, or play the tasks in two runs",
        )


def check_contexts(run: RunConfig) -> None:
    """Raises ConfigError where the context is too small for a client of the run."""
    for section, config in run.agent_sections.items():
        with naming(section):
            check_context(config, run.policy)


def narrow_contexts(run: RunConfig) -> list[tuple[str, str]]:
    """Narrow limits of the run's clients, each with what to do about it. Raises ConfigError."""
    found = {
        (narrow[0], _named_in(narrow[1], section)): None
        for section, config in run.agent_sections.items()
        if (narrow := context_warning(config, run.policy)) is not None
    }
    return list(found)


@contextmanager
def naming(section: str) -> Iterator[None]:
    """Errors about an agent tell of the fields of [agent]: let them name those of `section`."""
    try:
        yield
    except ConfigError as error:
        if section == "agent":
            raise
        told, remedy = (_named_in(text, section) for text in (error.message, error.remedy))
        raise ConfigError(told, remedy=remedy) from error


def _named_in(text: str, section: str) -> str:
    return _TABLE.sub(section, _FIELD.sub(section, text))


def check_agent(config: AgentConfig, section: str = "agent") -> None:
    """Raises ConfigError when its kind cannot be made or lacks a method, and for texts that cannot
    be filled."""
    check_prompts(f"{section}.prompts", config.prompts)
    CONTEXTS.check(config.context.kind)
    context_of(config.context)
    tools_of(config.tools)
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
    if isinstance(context_of(config.context), Summarising) and not agent.appends:
        raise ConfigError(
            f"{section}.context.kind = {config.context.kind!r} needs an agent that adds to what "
            f"was said, and {config.kind!r} as it is configured here makes each request anew",
            remedy="leave out its memory, or choose another context",
        )


def _first_annotation(method: Callable[..., object]) -> object:
    """Annotation of its first argument; None where it has none."""
    return next(iter(getattr(method, "__annotations__", {}).values()), None)
