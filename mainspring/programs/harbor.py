"""Which agents of the package Harbor can play, and what one of them is started with.

Invariant: a client in the sandbox is told the model port and never a key or another address. Pure;
it imports nothing of Harbor, which needs Python 3.12 and is an extra. Imported by the profile of
the kind "harbor", and by `infra.harbor`, which makes the agent in the process of its rollout.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict

from mainspring.config.registry import Registry
from mainspring.programs.profile import MODEL_NAME

HARBOR = "harbor"
"""The `agent.kind`, and the name of the package."""
VERSION = "0.24.0"
"""The only one that is known to work: its environments and agents are no settled interface."""
HARBOR_AGENTS: Registry[Any] = Registry("Harbor agent")
"""Agents of your own; `infra.harbor` checks them in a process that imports Harbor, and knows
Harbor's."""
FOLDERS = ("/logs", "/installed-agent")
"""Absolute paths that Harbor's agents write to."""
OPENAI_MODEL = f"openai/{MODEL_NAME}"


@dataclass(frozen=True, slots=True)
class HarborClient:
    """An installed agent of Harbor whose client a bundle brings."""

    bundle: str
    """Name of its recipe, and of Mainspring's own profile for it."""
    model: str
    """Name of the model for Harbor's class."""
    programs: Mapping[str, str]
    """As Harbor's class calls it, to the program in the bundle's `bin`."""
    set_by_harbor: tuple[str, ...] = ()
    """Variables of Mainspring's own profile that Harbor's class has another value for."""
    takes_config: bool = False
    """The profile's file in TOML is given to Harbor's class, as its argument `config`."""


CLIENTS: Mapping[str, HarborClient] = {
    "mini-swe-agent": HarborClient("mini-swe-agent", OPENAI_MODEL, {"mini-swe-agent": "mini"}),
    "claude-code": HarborClient(
        "claude-code", MODEL_NAME, {"claude": "claude"}, set_by_harbor=("CLAUDE_CONFIG_DIR",)
    ),
    "codex": HarborClient(
        *("codex", OPENAI_MODEL, {"codex": "codex"}),
        set_by_harbor=("CODEX_HOME",),
        takes_config=True,
    ),
    "opencode": HarborClient(
        *("opencode", f"gateway/{MODEL_NAME}", {"opencode": "opencode"}),
        set_by_harbor=("XDG_DATA_HOME", "XDG_STATE_HOME"),
    ),
    "qwen-coder": HarborClient("qwen-code", OPENAI_MODEL, {"qwen": "qwen"}),
    "gemini-cli": HarborClient("gemini-cli", f"google/{MODEL_NAME}", {"gemini": "gemini"}),
}
"""By Harbor's name."""


@dataclass(frozen=True, slots=True)
class Outside:
    """An agent of Harbor that asks the model from its own process, beside the node."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    """That differ from Harbor's defaults. The campaign's options override them."""


OUTSIDE: Mapping[str, Outside] = {
    # A recording needs asciinema in the image, which Harbor would install.
    "terminus-2": Outside({"record_terminal_session": False}),
}
"""By Harbor's name."""


class Inside(BaseModel):
    """Facts of an agent whose client runs in the sandbox."""

    model_config = ConfigDict(frozen=True)

    environment: dict[str, str]
    """Variables of its commands; they lead to the model port."""
    prelude: str
    """Bash that stands before each of its commands."""
    files: dict[str, str] = {}
    """Absolute path in the sandbox to text."""
    programs: tuple[str, ...] = ()
    """That a bundle brings, as they are called. None: the client is in the image."""
    extends: str | None = None
    """Harbor's name of the agent that `arguments` are for."""
    arguments: dict[str, Any] = {}
    """Arguments of the class that has this name, and of those that extend it."""


class HarborStart(BaseModel):
    """Description from which the process of a rollout makes and runs its agent."""

    model_config = ConfigDict(frozen=True)

    agent: str
    """Harbor's name of it, or "package.module:Class"."""
    instruction: str
    model: str
    arguments: dict[str, Any]
    """Arguments of its class, from the campaign's `agent.options`."""
    max_context: int
    max_new_tokens: int
    inside: Inside | None = None
    """None: it asks the model from its own process."""
