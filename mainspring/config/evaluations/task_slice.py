"""Which tasks of one split an evaluation or a verification goes over, how often, in which order.

Invariants: the order is a function of the ids and the seed alone, so two stores that list the tasks
in other orders agree, and the tasks of `limit` are a beginning of those of a larger one. In a file
for `mainspring eval run` it is the section [run].
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from mainspring.config.section import MANY, STORED, Section, Within
from mainspring.ids import TaskId

MAX_SAMPLES = 250
"""With gold and empty patches half of the rollouts that a group holds."""
_SLICE = re.compile(r"(\d*):(\d*)")


class TaskSlice(Section):
    """Tasks of one split, in the order in which they are played."""

    split: str = "test"
    """Split of the tasks."""
    slice: str = ""
    """Positions of the tasks in the split, as "0:5" or "100:", in listing order. Empty: all."""
    task: str = ""
    """Regular expression that the id of each task must match, anywhere in it: "^django__" or
    "1234$". Empty: all."""
    shuffle: Annotated[int | None, Within()] = Field(default=None, ge=0, lt=2**31)
    """Seed of the order in which the tasks are played. Unset: listing order."""
    limit: Annotated[int | None, Within(le=MANY)] = Field(default=None, ge=1)
    """Number of tasks, from the start of the order; those that are skipped because they are not
    verified do not count. Unset: all."""
    samples: Annotated[int, Within()] = Field(default=1, ge=1, le=MAX_SAMPLES)
    """Number of rollouts of each task."""

    @field_validator("slice")
    @classmethod
    def _two_numbers(cls, text: str) -> str:
        if text and not _SLICE.fullmatch(text):
            raise ValueError(f"{text!r} is not a slice: write two positions, as in 0:5 or 100:")
        return text

    @field_validator("task")
    @classmethod
    def _an_expression(cls, text: str, info: ValidationInfo) -> str:
        if info.context == STORED:  # its tasks are stored, and it is not asked again
            return text
        try:
            re.compile(text)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(
                f"{text!r} is not a regular expression: {error}; an id as it is written matches "
                'itself, as "django__django-11099"'
            ) from None
        return text

    @property
    def bounds(self) -> tuple[int, int | None]:
        """First position, and the one after the last."""
        first, _, end = self.slice.partition(":")
        return int(first or 0), int(end) if end else None

    def in_order(self, listed: Sequence[TaskId]) -> list[TaskId]:
        """Tasks that are asked for, of those `listed` in a split, in the order in which
        they are played; `limit` counts later, among the tasks that can be used."""
        matches = re.compile(self.task).search
        chosen = [task for task in listed[slice(*self.bounds)] if matches(task)]
        if self.shuffle is None:
            return chosen
        seed = self.shuffle

        def place(task: TaskId) -> bytes:
            return hashlib.sha256(f"{seed}\0{task}".encode()).digest()

        return sorted(chosen, key=place)

    @property
    def splits(self) -> tuple[str, ...]:
        return (self.split,)
