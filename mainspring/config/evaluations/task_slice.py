"""Which tasks of one split an evaluation or a verification goes over, and how often.

In a file for `mainspring eval run` it is the section [run].
"""

import re
from typing import Annotated

from pydantic import Field, field_validator

from mainspring.config.section import Section, Within

MAX_SAMPLES = 250
"""With gold and empty patches half of the rollouts that a group holds."""
_SLICE = re.compile(r"(\d*):(\d*)")


class TaskSlice(Section):
    """The tasks that an evaluation goes over. Only files for `mainspring eval run` have this
    section. The options `--split`, `--slice` and `--n` override it. Without a split, the only
    split of the task set is used."""

    split: str = "test"
    """Split of the tasks."""
    slice: str = ""
    """Positions of the tasks in the split, as "0:5" or "100:", in listing order. Empty: all."""
    samples: Annotated[int, Within()] = Field(default=1, ge=1, le=MAX_SAMPLES)
    """Number of rollouts of each task."""

    @field_validator("slice")
    @classmethod
    def _two_numbers(cls, text: str) -> str:
        if text and not _SLICE.fullmatch(text):
            raise ValueError(f"{text!r} is not a slice: write two positions, as in 0:5 or 100:")
        return text

    @property
    def bounds(self) -> tuple[int, int | None]:
        """First position, and the one after the last."""
        first, _, end = self.slice.partition(":")
        return int(first or 0), int(end) if end else None

    @property
    def splits(self) -> tuple[str, ...]:
        return (self.split,)
