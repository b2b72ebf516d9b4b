"""Section [agent]: which agent plays, and its limits."""

from pydantic import Field

from mainspring.config.presets import Preset
from mainspring.config.section import Section


class AgentConfig(Section):
    preset: Preset | None = None
    """Limits of another program, for comparable scores. Fields set beside it override it."""
    step_limit: int = Field(default=20, ge=1, le=500)
    """Maximum number of turns of a rollout."""
    max_format_errors: int = Field(default=3, ge=1)
    """Malformed replies in a row that end the rollout. For the bash agent a reply is malformed
    without exactly one bash block."""
    command_timeout_s: float = Field(default=60.0, gt=0, le=3600)
    """Time limit of one command; then its whole process group is killed."""
    observation_chars: int = Field(default=10_000, ge=200)
    """Maximum number of characters that the agent sees of an output. Of a longer one it sees the
    beginning and the end, half of this number each."""
    rollout_timeout_s: float = Field(default=1800.0, gt=0)
    """Time that a rollout's replies and commands may take together; then the working tree is
    graded. Waiting for an engine, a node or a retry does not count."""
    kind: str = "bash"
    """The agent: "bash", "bundled" (its prompts are short, for the bundled model), or a class of
    your own as "package.module:Class". A task's own `agent_name` overrides it."""
