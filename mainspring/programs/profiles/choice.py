"""The profile that `agent.kind` names.

Invariant: a name here is a program's and no agent's, so the kind alone tells which of them plays.
"""

from collections.abc import Callable, Mapping

from mainspring.config.agent import AgentConfig
from mainspring.named import find, make
from mainspring.programs.profile import Profile
from mainspring.programs.profiles.command import CommandProfile

PROFILES: Mapping[str, Callable[[AgentConfig], Profile]] = {"command": CommandProfile}


def is_program(config: AgentConfig) -> bool:
    return config.kind in PROFILES


def profile_for(config: AgentConfig) -> Profile:
    """Raises ConfigError."""
    return make("program", config.kind, find("program", config.kind, PROFILES), config)
