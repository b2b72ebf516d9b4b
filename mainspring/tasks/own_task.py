"""A task for an environment of one's own: what it needs is in `data`, which only that reads."""

from typing import Annotated

from pydantic import Field, JsonValue, field_validator

from mainspring.tasks.swe_task import SWE
from mainspring.tasks.task import Task


class OwnTask(Task):
    kind: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]
    """Named in the campaign file's section [environments]."""
    data: dict[str, JsonValue] = Field(default_factory=dict)
    """Data from which the environment makes its world."""

    @field_validator("kind")
    @classmethod
    def _kind_is_free(cls, kind: str) -> str:
        if kind == SWE:
            raise ValueError(f"{SWE!r} is the kind of tasks with a repository and hidden tests")
        return kind
