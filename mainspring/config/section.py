"""The base of every section of a campaign file: unknown keys are refused, nothing changes later."""

from pydantic import BaseModel, ConfigDict

BUNDLED = "bundled"
"""The generated task family, and the tiny model made for it."""
STORED = {"stored": True}
"""Validation context of configurations that were accepted before: newer refusals spare them."""
CONCURRENCY = 32
"""Rollouts of one evaluation in flight at once, unless it is set."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
