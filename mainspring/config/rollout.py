"""Section [rollout]: how a rollout's work is cut into activities."""

from typing import Annotated

from pydantic import Field

from mainspring.config.section import Counts, Section, Within


class RolloutConfig(Section):
    turns_per_activity: Annotated[int, Within(), Counts.ROLLOUTS] = Field(default=1, ge=1, le=50)
    """Number of turns that one activity of Temporal plays. 1: each reply and each command is an
    activity of its own. With more, the sandbox's node asks the engines itself, and a turn costs
    about half as much beyond model and sandbox; nodes then need the tokenizer's files, the engines'
    addresses and their API key. What is recorded and what a crash loses are the same."""
