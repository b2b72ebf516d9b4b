"""The base of every section of a campaign file: unknown keys are refused, nothing changes later."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
