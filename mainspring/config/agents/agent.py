"""Section [agent]: which agent plays, and its limits."""

from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from mainspring.config.agents.context import ContextConfig
from mainspring.config.agents.prompts import PromptsConfig
from mainspring.config.files.presets import Preset
from mainspring.config.section import (
    LARGE,
    MANY,
    MANY_TOKENS,
    YEAR_S,
    Counts,
    Section,
    Switch,
    Within,
)
from mainspring.programs.record import BranchKind

AGENT_LIMITS = (
    "step_limit",
    "max_format_errors",
    "command_timeout_s",
    "observation_chars",
    "rollout_timeout_s",
    "tool_parser",
    "cost_limit",
)
"""Fields that further agents of a run have as well, unless they set them."""


class SingleAnswer(StrEnum):
    """Content of the one reply of the single agent."""

    PATCH = "patch"
    """A unified diff, for tasks with a repository."""
    TEXT = "text"
    """The answer, which the environment of the task is given as it is."""


class ReactConfig(Section):
    """Tags and memory of the react agent."""

    thought: str = Field(default="Thought:", min_length=1)
    """Tag of the thought. Tags begin a line."""
    action: str = Field(default="Action:", min_length=1)
    """Tag of the action's name."""
    action_input: str = "Action Input:"
    """Tag of what the action takes: plain text, or a JSON object. "": no such field; the text under
    the action's tag is the input of the one tool of agent.tools."""
    summary: str = ""
    """Tag of what the policy writes for its later self; "": no such field. It needs `memory`."""
    memory: Annotated[int | None, Within(le=MANY)] = Field(default=None, ge=1)
    """Number of last steps that each request shows. Unset: all. With it each request after these
    steps begins a branch."""

    @property
    def tags(self) -> dict[str, str]:
        """By the name of their field."""
        names = ("thought", "action", "action_input", "summary")
        return {name: getattr(self, name) for name in names}

    @model_validator(mode="after")
    def _tags_can_be_told_apart(self) -> Self:
        tags = [tag for tag in self.tags.values() if tag]
        if len({*tags}) < len(tags):
            raise ValueError("two tags are the same: give each field one of its own")
        if any(tag != tag.strip() or "\n" in tag for tag in tags):
            raise ValueError("a tag is one line without blanks around it")
        if self.summary and self.memory is None:
            raise ValueError("summary needs memory: without it all steps are shown")
        return self


class AgentConfig(Section):
    preset: Preset | None = None
    """Limits of another program, for comparable scores. Fields set beside it override it."""
    step_limit: Annotated[int, Within()] = Field(default=20, ge=1, le=500)
    """Maximum number of turns of a rollout."""
    max_format_errors: Annotated[int, Within(le=MANY)] = Field(default=3, ge=1)
    """Malformed replies in a row that end the rollout. For the bash agent a reply is malformed
    without exactly one bash block."""
    command_timeout_s: Annotated[float, Within(), Counts.ROLLOUTS] = Field(
        default=60.0, gt=0, le=3600
    )
    """Time limit of one command; then its whole process group is killed."""
    observation_chars: Annotated[int, Within(le=MANY_TOKENS)] = Field(default=10_000, ge=200)
    """Maximum number of characters that the agent sees of an output. Of a longer one it sees the
    beginning and the end, half of this number each."""
    rollout_timeout_s: Annotated[float, Within(le=YEAR_S), Counts.ROLLOUTS] = Field(
        default=1800.0, gt=0
    )
    """Time that a rollout's replies and commands may take together; then the working tree is
    graded. Waiting for an engine, a node or a retry does not count."""
    cost_limit: Annotated[float | None, Within(le=LARGE), Counts.ROLLOUTS] = Field(
        default=None, gt=0
    )
    """Dollars that a rollout's calls may cost; then the working tree is graded. It needs the price
    of policy.model in [prices], and an endpoint that counts tokens. Unset: no limit."""
    kind: str = "bash"
    """The agent: "bash" (one bash block a reply), "tools" (tool calls), "react" (a thought, an
    action and its input), "single" (one reply), "bundled" (as bash with short prompts, for the
    bundled model), or a class of your own as "package.module:Class". Or a program that runs by
    itself in the sandbox and asks the policy over HTTP: the name of a client (docs/agents.md), or
    "command"; or "function", a Python function of your own; or "harbor", an agent class of that
    package; or "remote": agents that run elsewhere take its rollouts at a gateway. A task that asks
    for an agent (`agent_name`) is played by that one: a section [agents.NAME], or one of these
    agents and programs by its name."""
    prompts: PromptsConfig = PromptsConfig()
    context: ContextConfig = ContextConfig()
    tools: tuple[str, ...] = Field(
        default=("bash", "view", "edit", "search", "submit"), min_length=1
    )
    """Tools of the agents "tools" and "react": "bash", "view", "edit", "search", "submit", or
    "act" for environments that take actions as text, or classes of your own as
    "package.module:Class". A task whose row names tools (`tools`) is played with those."""
    tool_variables: tuple[str, ...] = ()
    """Names of variables of the sandbox nodes' environment that tools in Python get, such as a key
    for a service. They get no others but PATH and the like."""
    react: ReactConfig = ReactConfig()
    single: SingleAnswer = SingleAnswer.PATCH
    """Content of the one reply of the single agent: "patch", or "text" for tasks of another kind
    than "swe"."""
    override: Switch = False
    """Play every task with `kind`, also those that ask for another agent (`agent_name`) or
    for other tools (`tools`)."""
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
    requests_per_minute: Annotated[int, Within(le=MANY), Counts.ROLLOUTS] = Field(default=120, ge=1)
    """More requests of a program within a minute end the rollout. Those count as well that repeat
    earlier ones and are answered from the store."""
    parallel_requests: Annotated[int, Within(), Counts.ROLLOUTS] = Field(default=8, ge=1, le=64)
    """Requests of a program that are answered at once; more wait."""

    @model_validator(mode="before")
    @classmethod
    def _one_reply_is_one_turn(cls, raw: Any) -> Any:
        if isinstance(raw, dict) and raw.get("kind") == "single" and "step_limit" not in raw:
            return raw | {"step_limit": 1}
        return raw
