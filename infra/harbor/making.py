"""One agent of Harbor, made by Harbor's own factory and told where its model is.

Invariants: a class that cannot play in a closed sandbox is refused with a sentence, and so is an
option that its class does not know; a client that a bundle brings is not installed. Imports Harbor:
only the process of a rollout, and the one that checks a campaign, import it.
"""
# pyright: reportMissingImports=false

import inspect
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harbor.agents.base import BaseAgent
from harbor.agents.factory import AgentFactory
from harbor.agents.installed.base import BaseInstalledAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.name import AgentName
from harbor.models.trial.config import AgentConfig

from mainspring.config.registry import is_path
from mainspring.errors import ConfigError
from mainspring.programs.harbor import HARBOR_AGENTS, HarborStart, Inside

_API_BASE = "api_base"
_MODEL_INFO = "model_info"
_BY_HARBOR = ("self", "args", "kwargs", "mcp_servers", "skills_dir", "load_trajectory")
"""Parameters of constructors that are no options of an agent."""


def class_of(agent: str) -> type[BaseAgent]:
    """Raises ConfigError."""
    if not is_path(agent):
        return AgentFactory.get_agent_class(AgentName(agent))
    agent_class = HARBOR_AGENTS.find(agent)
    if not inspect.isclass(agent_class) or not issubclass(agent_class, BaseAgent):
        kind = (
            f"the class {agent_class.__name__}"
            if inspect.isclass(agent_class)
            else type(agent_class).__name__
        )
        raise ConfigError(
            f"Harbor agent {agent!r} is {kind}, expected a class that extends Harbor's BaseAgent",
            remedy="write it as `class Name(harbor.agents.base.BaseAgent)`",
        )
    missing = ", ".join(sorted(getattr(agent_class, "__abstractmethods__", ())))
    if missing:
        raise ConfigError(
            f"Harbor agent {agent!r} lacks {missing}",
            remedy="write the methods that Harbor's BaseAgent leaves open",
        )
    return agent_class


def make(start: HarborStart, folder: Path, model_url: str) -> BaseAgent:
    """`folder`: of this process, for the agent's own files; `model_url`: for one that asks from
    here. Raises ConfigError."""
    made_of = class_of(start.agent)
    inside = start.inside
    _check_place(start.agent, made_of, inside)
    arguments = {**_arguments(start, made_of, model_url), **start.arguments}
    if made_of.options_model is None:
        _check_options(start.agent, made_of, start.arguments)
    config = AgentConfig(
        name=start.agent,
        model_name=start.model,
        kwargs=arguments,
        env=inside.environment if inside else {},
    )
    try:
        agent = AgentFactory.create_agent_from_config(config, logs_dir=folder)
    except Exception as error:
        raise ConfigError(
            f"Harbor agent {start.agent!r} cannot be made: {type(error).__name__}: "
            f"{' '.join(str(error).split())}",
            remedy="compare agent.options with what its class takes",
        ) from error
    if inside is not None and inside.programs:
        _take_from_bundle(agent, inside.programs)
    return agent


def _check_place(agent: str, made_of: type[BaseAgent], inside: Inside | None) -> None:
    """Raises ConfigError."""
    is_installed = issubclass(made_of, BaseInstalledAgent)
    if is_installed and inside is None:
        raise ConfigError(
            f"Harbor agent {agent!r} is an installed one, and nothing is installed in a rollout",
            remedy="set options.bundle in [agent] to the bundle that brings its client, or "
            "options.in_image = true where the task's image has it",
        )
    if not is_installed and inside is not None:
        raise ConfigError(
            f"Harbor agent {agent!r} is no installed one: it asks its model beside the node",
            remedy="remove options.bundle and options.in_image from [agent]",
        )


def _arguments(start: HarborStart, made_of: type[BaseAgent], model_url: str) -> dict[str, Any]:
    """Arguments that tell the class of its model, beside variables and the model's name."""
    inside = start.inside
    if inside is not None:
        extends = inside.extends and class_of(inside.extends)
        return inside.arguments if extends and issubclass(made_of, extends) else {}
    info = {"max_input_tokens": start.max_context, "max_output_tokens": start.max_new_tokens}
    arguments = {_API_BASE: model_url, _MODEL_INFO: info}
    return {name: value for name, value in arguments.items() if name in _known(made_of)}


def _check_options(agent: str, made_of: type[BaseAgent], options: Iterable[str]) -> None:
    """Check options of a class that declares none: Harbor would ignore what it does not know.
    Raises ConfigError."""
    known_options = _known(made_of)
    if unknown := sorted(set(options) - known_options):
        raise ConfigError(
            f"agent.options of {agent!r} has no {', '.join(unknown)}",
            remedy=f"its options are {', '.join(sorted(known_options))}"
            if known_options
            else "it takes none",
        )


def _known(made_of: type[BaseAgent]) -> set[str]:
    """Options by name: of its constructor and of those that it extends, or declared."""
    if made_of.options_model is not None:
        return set(made_of.options_model.model_fields)
    flags = [*getattr(made_of, "CLI_FLAGS", ()), *getattr(made_of, "ENV_VARS", ())]
    names = {flag.kwarg for flag in flags}
    framework = set(inspect.signature(BaseAgent.__init__).parameters)
    for base in made_of.__mro__[: made_of.__mro__.index(BaseAgent)]:
        if "__init__" in vars(base):
            names |= set(inspect.signature(base.__init__).parameters)
    return names - framework - set(_BY_HARBOR) - {"version", "extra_env"}


def _take_from_bundle(agent: BaseAgent, programs: Iterable[str]) -> None:
    async def look(environment: BaseEnvironment) -> None:
        """In the place of `install`."""
        for program in programs:
            ran = await environment.exec(f"command -v {shlex.quote(program)}")
            if ran.return_code != 0:
                raise RuntimeError(f"the bundle's program {program} is not in the sandbox")

    # On the object: the class keeps its name and its module, which Harbor tells others.
    agent.install = look  # pyright: ignore[reportAttributeAccessIssue]
