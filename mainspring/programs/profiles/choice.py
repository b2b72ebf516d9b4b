"""The profile that `agent.kind` names.

Invariant: a name here is a program's and no agent's, so the kind alone tells which of them plays.
"""

from collections.abc import Callable
from typing import Any

from mainspring.config.agents.agent import AgentConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.registry import Registry
from mainspring.errors import ConfigError
from mainspring.programs.context_need import ContextNeed
from mainspring.programs.functions import FUNCTION
from mainspring.programs.harbor import HARBOR
from mainspring.programs.profile import Profile
from mainspring.programs.profiles.aider import Aider
from mainspring.programs.profiles.claude_code import ClaudeCode
from mainspring.programs.profiles.codex import Codex
from mainspring.programs.profiles.command import CommandProfile
from mainspring.programs.profiles.function import FunctionProfile
from mainspring.programs.profiles.gemini_cli import GeminiCli
from mainspring.programs.profiles.harbor import HarborProfile
from mainspring.programs.profiles.mini_swe_agent import MiniSweAgent
from mainspring.programs.profiles.opencode import OpenCode
from mainspring.programs.profiles.python_agents import LangGraph, OpenAiAgents, OpenHands
from mainspring.programs.profiles.qwen_code import QwenCode
from mainspring.programs.profiles.remote import REMOTE, RemoteProfile

_CLIENTS = (
    *(MiniSweAgent, ClaudeCode, Codex, OpenCode, QwenCode, GeminiCli, Aider),
    *(OpenAiAgents, LangGraph, OpenHands),
)


def _starts(what: str, profile: Any) -> None:
    """Raises ConfigError."""
    if not hasattr(profile, "launch") and not hasattr(profile, "options_for"):
        raise ConfigError(
            f"{what} lacks launch", remedy="write the methods of mainspring/programs/profile.py"
        )


PROFILES: Registry[Callable[[AgentConfig], Profile | FunctionProfile]] = Registry(
    "program",
    (
        ("command", CommandProfile),
        (FUNCTION, FunctionProfile),
        (HARBOR, HarborProfile),
        *((client.name, client) for client in _CLIENTS),
        (REMOTE, RemoteProfile),
    ),
    takes="config",
    methods=(),
    require=_starts,
)
"""Programs that a sandbox starts, or its node beside it, or that run elsewhere."""


def is_program(config: AgentConfig) -> bool:
    """Whether it asks the policy through the gateway, in a sandbox or elsewhere."""
    return config.kind in PROFILES


def is_remote(config: AgentConfig) -> bool:
    """Whether it runs elsewhere."""
    return config.kind == REMOTE


def profile_for(config: AgentConfig) -> Profile | FunctionProfile:
    """Raises ConfigError."""
    return PROFILES.make(config.kind, config)


def check_context(agent: AgentConfig, policy: PolicyConfig) -> None:
    """Raises ConfigError where the context is too small for the client."""
    if need := _need_of(agent):
        need.check(_client(agent), policy.max_context, policy.max_new_tokens)


def context_warning(agent: AgentConfig, policy: PolicyConfig) -> tuple[str, str] | None:
    """The narrow limit, and what to do about it; None: nothing is narrow, or known to be."""
    need = _need_of(agent)
    return need and need.warning(_client(agent), policy.max_context, policy.max_new_tokens)


def _need_of(agent: AgentConfig) -> ContextNeed | None:
    return profile_for(agent).context_need if is_program(agent) else None


def _client(agent: AgentConfig) -> str:
    """For messages."""
    return str(agent.options["agent"]) if agent.kind == HARBOR else agent.kind


def remote_profile(config: AgentConfig) -> RemoteProfile | None:
    """None where the agent does not run elsewhere. Raises ConfigError."""
    return RemoteProfile(config) if is_remote(config) else None


def folders_of(config: AgentConfig) -> tuple[str, ...]:
    """Absolute paths of empty folders that its sandbox has beside the repository. Raises
    ConfigError."""
    profile = profile_for(config) if is_program(config) else None
    return profile.folders if isinstance(profile, FunctionProfile) else ()
