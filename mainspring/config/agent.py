"""Section [agent]: which agent plays, and its limits."""

from typing import Annotated

from pydantic import Field

from mainspring.config.files.presets import Preset
from mainspring.config.prompts import PromptsConfig
from mainspring.config.section import MANY, MANY_TOKENS, YEAR_S, Section, Switch, Within
from mainspring.programs.record import BranchKind

AGENT_LIMITS = (
    "step_limit",
    "max_format_errors",
    "command_timeout_s",
    "observation_chars",
    "rollout_timeout_s",
    "tool_parser",
)
"""Fields that further agents of a run have as well, unless they set them."""


class AgentConfig(Section):
    preset: Preset | None = None
    """Limits of another program, for comparable scores. Fields set beside it override it."""
    step_limit: Annotated[int, Within()] = Field(default=20, ge=1, le=500)
    """Maximum number of turns of a rollout."""
    max_format_errors: Annotated[int, Within(le=MANY)] = Field(default=3, ge=1)
    """Malformed replies in a row that end the rollout. For the bash agent a reply is malformed
    without exactly one bash block."""
    command_timeout_s: Annotated[float, Within()] = Field(default=60.0, gt=0, le=3600)
    """Time limit of one command; then its whole process group is killed."""
    observation_chars: Annotated[int, Within(le=MANY_TOKENS)] = Field(default=10_000, ge=200)
    """Maximum number of characters that the agent sees of an output. Of a longer one it sees the
    beginning and the end, half of this number each."""
    rollout_timeout_s: Annotated[float, Within(le=YEAR_S)] = Field(default=1800.0, gt=0)
    """Time that a rollout's replies and commands may take together; then the working tree is
    graded. Waiting for an engine, a node or a retry does not count."""
    kind: str = "bash"
    """The agent: "bash", "bundled" (its prompts are short, for the bundled model), or a class of
    your own as "package.module:Class". Or a program that runs by itself in the sandbox and asks the
    policy over HTTP: the name of a client (docs/agents.md), or "command"; or "function", a Python
    function of your own; or "harbor", an agent class of that package; or "remote": agents that run
    elsewhere take its rollouts at a gateway. A task that asks for an agent (`agent_name`) is played
    by that one; a run whose kind is a program refuses it."""
    prompts: PromptsConfig = PromptsConfig()
    override: Switch = False
    """Play every task with `kind`, also those that ask for another agent (`agent_name`)."""
    version: str | None = None
    """Version of the client's bundle; None: the one that `mainspring agents add` installs. This
    field and those below are for programs."""
    options: dict[str, str | int | float | bool | list[str]] = Field(default_factory=dict)
    """Further options of the client, by its own names; `command` for the kind "command", `function`
    for the kind "function"; for "harbor" and "remote" those of docs/agents.md."""
    tool_parser: str = "hermes"
    """How a reply writes tool calls: "hermes", "qwen_xml", "llama_json", "none", or a function of
    your own as "package.module:function". It counts for an agent that offers tools, too. An
    endpoint gives its tool calls apart: it needs none."""
    train: tuple[BranchKind, ...] = Field(default=(BranchKind.MAIN, BranchKind.AGENT), min_length=1)
    """Branches of a program's calls that are trained: "main", "agent" (sub-agents), "side" (titles
    and summaries)."""
    requests_per_minute: Annotated[int, Within(le=MANY)] = Field(default=120, ge=1)
    """More requests of a program within a minute end the rollout. Those count as well that repeat
    earlier ones and are answered from the store."""
    parallel_requests: Annotated[int, Within()] = Field(default=8, ge=1, le=64)
    """Requests of a program that are answered at once; more wait."""
