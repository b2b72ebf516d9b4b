"""An agent of the package Harbor: a function of Mainspring's plays it, beside the node.

Two kinds of them: those that ask the model from their own process, and installed ones, whose client
runs in the sandbox and asks at the model port. An installed one needs a bundle, or its client in
the task's image: nothing is installed in a rollout. Pure; it imports nothing of Harbor's.
"""

import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from mainspring.config.agents.agent import AgentConfig
from mainspring.config.registry import is_path
from mainspring.errors import ConfigError
from mainspring.programs import harbor
from mainspring.programs.harbor import (
    CLIENTS,
    FOLDERS,
    HARBOR,
    OPENAI_MODEL,
    OUTSIDE,
    HarborStart,
    Inside,
)
from mainspring.programs.profile import BUNDLES, KEY, MODEL_URL, TO_MODEL, Ask, Launch, Profile
from mainspring.programs.profiles.claude_code import ClaudeCode
from mainspring.programs.profiles.client import HOME, PLACE, QUIET, TASK
from mainspring.programs.profiles.codex import Codex
from mainspring.programs.profiles.function import VARIABLES, FunctionProfile, variables_in
from mainspring.programs.profiles.gemini_cli import GeminiCli
from mainspring.programs.profiles.mini_swe_agent import MiniSweAgent
from mainspring.programs.profiles.opencode import OpenCode
from mainspring.programs.profiles.qwen_code import QwenCode
from mainspring.programs.recipes import Recipe, recipe_of

PLAY = "infra.harbor.playing:play"
"""As a path: only commands that check it, and processes of rollouts, import it."""
_AGENT, _BUNDLE, _IN_IMAGE = "agent", "bundle", "in_image"
_OURS = (_AGENT, _BUNDLE, _IN_IMAGE, VARIABLES)
_SET = ("logs_dir", "model_name", "version", "extra_env", "environment_logs_dir", "logger")
"""Arguments of Harbor's classes that Mainspring gives."""
_PROGRAMS = f"{PLACE}/programs"
_OWN: Mapping[str, Callable[[AgentConfig], Profile]] = {
    client.name: client
    for client in (MiniSweAgent, ClaudeCode, Codex, OpenCode, QwenCode, GeminiCli)
}
"""Profiles whose variables lead a client to the model port and keep it quiet."""


class HarborProfile(FunctionProfile):
    path: ClassVar[str] = PLAY
    folders = FOLDERS
    needs_sandbox = True

    def __init__(self, config: AgentConfig) -> None:
        self.agent = _agent_in(config)
        self.variables = variables_in(config)
        self._arguments: Mapping[str, Any] = {
            name: value for name, value in config.options.items() if name not in _OURS
        }
        self._recipe = _recipe_in(config, self.agent)
        self._name = _harbors_name(self.agent, self._recipe)
        self._client = CLIENTS[self._name] if self._name else None
        self._own: Profile | None = None
        self.asks_inside = self._recipe is not None or _is_in_image(config)
        if self._recipe is not None:
            self.bundle = self._recipe.bundle
            if own_class := _OWN.get(self._recipe.name):
                own = own_class(AgentConfig(kind=self._recipe.name, version=config.version))
                self._own, self.noise, self.offers_tools = own, own.noise, own.offers_tools
                if own.context_need is not None:
                    # The options are those of Harbor's class.
                    is_measured = own.context_need.is_measured and not self._arguments
                    self.context_need = replace(
                        own.context_need, remedy="", is_measured=is_measured
                    )
        elif config.version is not None:
            raise ConfigError(
                f"agent.version is {config.version!r}, and no bundle is used",
                remedy="remove agent.version, or set options.bundle in [agent]",
            )
        self._refuse_what_is_set()

    @property
    def title(self) -> str:
        return f"Harbor's agent {self.agent!r}"

    def options_for(self, ask: Ask) -> dict[str, Any]:
        return self.start(ask).model_dump(mode="json")

    def start(self, ask: Ask) -> HarborStart:
        outside = OUTSIDE.get(self.agent)
        return HarborStart(
            agent=self.agent,
            instruction=ask.instruction,
            model=self._client.model if self._client else OPENAI_MODEL,
            arguments={**(outside.arguments if outside else {}), **self._arguments},
            max_context=ask.max_context,
            max_new_tokens=ask.max_new_tokens,
            inside=self._inside(ask) if self.asks_inside else None,
        )

    def _inside(self, ask: Ask) -> Inside:
        if self._recipe is None:
            return Inside(environment=_leading_to_the_port(), prelude=HOME)
        client = self._client
        programs = client.programs if client else {name: name for name in self._recipe.programs}
        inside = Inside(
            environment=_leading_to_the_port(),
            prelude="\n".join([HOME, *_linked(self._recipe, programs)]),
            programs=tuple(programs),
        )
        if client is None or self._own is None:
            return inside
        launch = self._own.launch(ask)
        other = client.set_by_harbor
        environment = {name: text for name, text in launch.environment.items() if name not in other}
        return inside.model_copy(
            update={
                "environment": environment,
                "extends": self._name,
                **_configured(launch, self._recipe.version, client),
            }
        )

    def _refuse_what_is_set(self) -> None:
        """Raises ConfigError."""
        of_codex = ("config",) if self._recipe and self._recipe.name == Codex.name else ()
        refused = sorted(set(self._arguments) & {*_SET, *of_codex})
        if refused:
            raise ConfigError(
                f"agent.options.{refused[0]} is set by Mainspring for {self.title}",
                remedy="remove it; a bundle's version is agent.version",
            )


def _agent_in(config: AgentConfig) -> str:
    """Raises ConfigError."""
    agent = config.options.get(_AGENT)
    listed = ", ".join([*CLIENTS, *OUTSIDE])
    if not isinstance(agent, str) or not agent:
        problem = "names no agent" if agent is None else f"has options.{_AGENT} = {agent!r}"
        raise ConfigError(
            f'agent.kind = "{HARBOR}" {problem}',
            remedy=f"set options.{_AGENT} in [agent] to one of {listed}, or to a class as "
            '"package.module:Class"',
        )
    if agent not in CLIENTS and agent not in OUTSIDE and not is_path(agent):
        raise ConfigError(
            f"Harbor's agent {agent!r} cannot play: Mainspring has no bundle of that name, and "
            "nothing is installed in a rollout",
            remedy=f"choose from {listed}; of another one whose client is in the task's image name "
            f'the class, as "package.module:Class", with options.{_IN_IMAGE} = true',
        )
    return agent


def _recipe_in(config: AgentConfig, agent: str) -> Recipe | None:
    """Raises ConfigError."""
    bundle = config.options.get(_BUNDLE)
    if is_path(agent):
        if bundle is None:
            return None
        if _is_in_image(config):
            raise ConfigError(
                f"agent.options has both {_BUNDLE} and {_IN_IMAGE}",
                remedy=f"set {_BUNDLE} where a bundle brings the client, {_IN_IMAGE} where the "
                "task's image has it",
            )
        return recipe_of(str(bundle), config.version)
    for option in (_BUNDLE, _IN_IMAGE):
        if option in config.options:
            raise ConfigError(
                f"agent.options.{option} is for classes of your own, and {agent!r} is Harbor's",
                remedy=f"remove it: {agent!r} "
                + ("brings its bundle" if agent in CLIENTS else "runs beside the node"),
            )
    return recipe_of(CLIENTS[agent].bundle, config.version) if agent in CLIENTS else None


def _is_in_image(config: AgentConfig) -> bool:
    """Raises ConfigError."""
    value = config.options.get(_IN_IMAGE, False)
    if not isinstance(value, bool):
        raise ConfigError(f"agent.options.{_IN_IMAGE} is {value!r}", remedy="write true or false")
    return value


def _leading_to_the_port() -> dict[str, str]:
    """For clients that no profile knows."""
    return {
        **QUIET,
        **TO_MODEL,
        "OPENAI_API_BASE": f"{MODEL_URL}/v1",
        "GOOGLE_GEMINI_BASE_URL": MODEL_URL,
        "GEMINI_API_KEY": KEY,
    }


def _linked(recipe: Recipe, programs: Mapping[str, str]) -> list[str]:
    """Bash that lets Harbor's commands find the bundle's programs by the names they have there."""
    links = [
        f"ln -sfn {shlex.quote(f'{BUNDLES}/{recipe.bundle}/bin/{program}')} "
        f"{shlex.quote(f'{_PROGRAMS}/{name}')}"
        for name, program in programs.items()
    ]
    commands = " && ".join([f"mkdir -p {_PROGRAMS}", *links])
    return [f"[ -d {_PROGRAMS} ] || {{ {commands}; }}", f'export PATH={_PROGRAMS}:"$PATH"']


def _configured(launch: Launch, version: str, client: harbor.HarborClient) -> dict[str, Any]:
    """Fields of `Inside` that tell the client what its own profile would write into files."""
    files = {path: text for path, text in launch.files.items() if path != TASK}
    if not client.takes_config:
        return {"files": files, "arguments": {"version": version}}
    [text] = files.values()
    return {"arguments": {"version": version, "config": tomllib.loads(text)}}


def _harbors_name(agent: str, recipe: Recipe | None) -> str | None:
    """Harbor's name of the agent whose client the bundle has; None: Harbor's classes start none."""
    names = [name for name, client in CLIENTS.items() if recipe and client.bundle == recipe.name]
    return agent if agent in CLIENTS else next(iter(names), None)
