"""The profile that `agent.kind` names.

Invariant: a name here is a program's and no agent's, so the kind alone tells which of them plays.
"""

from collections.abc import Callable, Mapping

from mainspring.config.agent import AgentConfig
from mainspring.named import find, make
from mainspring.programs.profile import Profile
from mainspring.programs.profiles.aider import Aider
from mainspring.programs.profiles.claude_code import ClaudeCode
from mainspring.programs.profiles.codex import Codex
from mainspring.programs.profiles.command import CommandProfile
from mainspring.programs.profiles.gemini_cli import GeminiCli
from mainspring.programs.profiles.mini_swe_agent import MiniSweAgent
from mainspring.programs.profiles.opencode import OpenCode
from mainspring.programs.profiles.python_agents import LangGraph, OpenAiAgents, OpenHands
from mainspring.programs.profiles.qwen_code import QwenCode

PROFILES: Mapping[str, Callable[[AgentConfig], Profile]] = {
    "command": CommandProfile,
    **{
        each.name: each
        for each in (
            *(MiniSweAgent, ClaudeCode, Codex, OpenCode, QwenCode, GeminiCli, Aider),
            *(OpenAiAgents, LangGraph, OpenHands),
        )
    },
}


def is_program(config: AgentConfig) -> bool:
    return config.kind in PROFILES


def profile_for(config: AgentConfig) -> Profile:
    """Raises ConfigError."""
    return make("program", config.kind, find("program", config.kind, PROFILES), config)
