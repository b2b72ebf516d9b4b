"""A verification: the run that grades given patches (gold and empty ones, or exploits)."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from mainspring.config.evaluations.task_slice import TaskSlice
from mainspring.config.run import RunConfig
from mainspring.config.section import CONCURRENCY, MANY, Within
from mainspring.integrity.exploits import check_exploits
from mainspring.status import CampaignKind, Player


class VerificationConfig(TaskSlice, RunConfig):
    """Its `samples` count for each task and kind of patch."""

    kind: Literal[CampaignKind.VERIFY] = Field(default=CampaignKind.VERIFY, exclude=True)
    players: tuple[Player, ...] = Field(default=(Player.GOLD, Player.EMPTY), min_length=1)
    """Whose patches it grades: "gold" and "empty", or "exploit" alone."""
    exploits: tuple[str, ...] = Field(default=(), max_length=400)
    """Known exploits that it tries on each task, by name, with players ["exploit"]."""
    concurrency: Annotated[int, Within(le=MANY)] = Field(default=CONCURRENCY, ge=1)
    """Gradings in flight at once."""

    @model_validator(mode="after")
    def _given(self) -> Self:
        if Player.EXPLOIT in self.players:
            if self.players != (Player.EXPLOIT,) or not self.exploits or self.samples > 1:
                raise ValueError("exploits are tried alone, by name, and once each")
            check_exploits(self.exploits)
        elif not set(self.players) <= {Player.GOLD, Player.EMPTY}:
            raise ValueError("a verification grades gold and empty patches, or exploits")
        return self
