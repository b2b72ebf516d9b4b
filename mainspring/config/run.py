"""What an evaluation, a verification or a regrade goes over."""

import re
from typing import Self

from pydantic import Field, field_validator, model_validator

from mainspring.config.section import Section
from mainspring.integrity.exploits import check_exploits
from mainspring.status import Player

MAX_SAMPLES = 250
"""With gold and empty patches half of the rollouts that a group holds."""
_SLICE = re.compile(r"(\d*):(\d*)")


class RunConfig(Section):
    """What an evaluation, a verification or a regrade goes over."""

    split: str = "test"
    """Split of the tasks."""
    slice: str = ""
    """Only these tasks of the split, as "0:5" or "100:", in listing order; empty: all."""
    samples: int = Field(default=1, ge=1, le=MAX_SAMPLES)
    """Rollouts of each task; in a verification, of each task and kind of patch."""
    players: tuple[Player, ...] = Field(default=(Player.GOLD, Player.EMPTY), min_length=1)
    """Whose patches a verification grades: "gold" and "empty", or "exploit" alone."""
    exploits: tuple[str, ...] = Field(default=(), max_length=400)
    """Known exploits that a verification tries on each task, by name, with players ["exploit"]."""
    of: str = ""
    """The campaign whose patches a regrade grades again."""

    @field_validator("slice")
    @classmethod
    def _two_numbers(cls, text: str) -> str:
        if text and not _SLICE.fullmatch(text):
            raise ValueError(f"{text!r} is not a slice: write two positions, as in 0:5 or 100:")
        return text

    @model_validator(mode="after")
    def _given(self) -> Self:
        if Player.EXPLOIT in self.players:
            if self.players != (Player.EXPLOIT,) or not self.exploits or self.samples > 1:
                raise ValueError("exploits are tried alone, by name, and once each")
            check_exploits(self.exploits)
        elif not set(self.players) <= {Player.GOLD, Player.EMPTY}:
            raise ValueError("a verification grades gold and empty patches, or exploits")
        return self

    @property
    def bounds(self) -> tuple[int, int | None]:
        """First position, and the one after the last."""
        first, _, end = self.slice.partition(":")
        return int(first or 0), int(end) if end else None
