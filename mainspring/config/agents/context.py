"""Section [agent.context]: what happens when a rollout's history becomes too long for a request."""

from typing import Annotated

from pydantic import Field

from mainspring.config.section import MANY, MANY_TOKENS, Section, Within

SUMMARY_PROMPT = (
    "Stop here and write no command. Sum up in a few sentences what you did and found so far, and "
    "what is left to do: from now on you will see this summary instead of the messages above."
)
FAIL = "fail"
"""No strategy: the rollout ends as `context_full`."""


class ContextConfig(Section):
    kind: str = FAIL
    """"fail": the rollout ends as context_full. "head_tail": the first and the last turns stay,
    with a marker between them. "forget_outputs": old outputs are cut to their first and last lines.
    "summarise": the policy is asked for a summary, which is trained as a turn and opens the next
    branch; it counts as a turn, and is for agents that add to what was said. Or a class of your own
    as "package.module:Class". It is asked when a prompt has more tokens than policy.max_context -
    policy.max_new_tokens; what it makes begins a branch."""
    head_ratio: Annotated[float, Within()] = Field(default=0.3, ge=0, le=1)
    """Share of the room for turns that the first ones get, for "head_tail"."""
    fill: Annotated[float, Within()] = Field(default=1.0, gt=0, le=1)
    """Share of the tokens that a shortened prompt may have. With 1 nearly each turn that follows
    is too long again and begins a branch of its own; with 0.6 many turns share one."""
    lines: Annotated[int, Within(le=MANY)] = Field(default=3, ge=1)
    """Number of lines of an old output that stay at each end, for "forget_outputs", and for
    "summarise" where the newest turn does not fit beside the summary."""
    summary_prompt: str = Field(default=SUMMARY_PROMPT, min_length=1, max_length=20_000)
    """Words that ask for a summary, for "summarise"."""
    summary_tokens: Annotated[int, Within(le=MANY_TOKENS)] = Field(default=1024, ge=1)
    """Maximum tokens of a summary, for "summarise"; at most policy.max_new_tokens."""
