"""Section [agent]: who plays, and its limits."""

from pydantic import Field

from mainspring.config.presets import Preset
from mainspring.config.section import Section


class AgentConfig(Section):
    preset: Preset | None = None
    """Limits of another program, for figures that compare; fields given beside it win."""
    step_limit: int = Field(default=20, ge=1, le=500)
    """Turns a rollout may take."""
    max_format_errors: int = Field(default=3, ge=1)
    """Replies in a row without exactly one bash block before the rollout ends."""
    command_timeout_s: float = Field(default=60.0, gt=0, le=3600)
    """Wall time of one command; then its whole process group is killed."""
    observation_chars: int = Field(default=10_000, ge=200)
    """Longer outputs are shown as head and tail of half this size."""
    rollout_timeout_s: float = Field(default=1800.0, gt=0)
    """Time that a rollout's replies and commands may take together; then what the tree holds is
    graded. Waiting for an engine, a node or a retry does not count."""
    kind: str = "bash"
    """The agent: "bash", "bundled" (its prompts are short, for the bundled model), or a class of
    your own as "package.module:Class". A task's own `agent_name` comes first."""
