"""The seam between a rollout and the program that plays it: how one client is started.

Invariants: a profile is pure, made from the campaign's section [agent] alone, and the same
arguments give the same launch, so that a program that is run again asks the same. Implemented in
`profiles`, a file each, and by profiles of your own; chosen by `agent.kind`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from mainspring.programs.context_need import ContextNeed
from mainspring.programs.matching import Noise

MODEL_PORT = 8400
MODEL_URL = f"http://127.0.0.1:{MODEL_PORT}"
"""Where a program in a sandbox finds its model; without a path."""
MODEL_NAME = "mainspring"
"""Name by which clients call the model; the gateway takes any name."""
KEY = "sk-none"
"""Key that clients send inside a sandbox, where none is needed."""
TO_MODEL: Mapping[str, str] = {
    "OPENAI_BASE_URL": f"{MODEL_URL}/v1",
    "OPENAI_API_KEY": KEY,
    "ANTHROPIC_BASE_URL": MODEL_URL,
    "ANTHROPIC_API_KEY": KEY,
}
"""Variables that lead the usual clients to the model port."""
BUNDLES = "/opt/mainspring-agents"
"""Inside a sandbox: each bundle is mounted read-only in a folder of its name."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Inputs that a program is started with."""

    instruction: str
    """The task, as the user would type it."""
    workdir: str
    max_context: int
    """Tokens of prompt and reply together."""
    max_new_tokens: int
    issue: str = ""
    """The issue alone, as the task has it."""


@dataclass(frozen=True, slots=True)
class Launch:
    command: str
    """For bash, in the task's working directory."""
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """Absolute path inside the sandbox (below /tmp or the home directory) to text, written before
    the command starts."""


class Profile(Protocol):
    @property
    def bundle(self) -> str | None:
        """Name of the bundle that it needs, as `mainspring agents list` shows it; None: none."""
        ...

    @property
    def noise(self) -> Noise: ...

    @property
    def offers_tools(self) -> bool:
        """Requests without tools are titles or summaries, not the agent's own turns."""
        ...

    @property
    def context_need(self) -> ContextNeed | None:
        """None: nothing is known of it."""
        ...

    def launch(self, ask: Ask) -> Launch: ...
