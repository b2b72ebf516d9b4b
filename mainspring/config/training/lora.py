"""Section [trainer.lora]: low-rank adapters instead of all weights."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from mainspring.config.section import BUNDLED, LARGE, Section, Within


class LoraTargets(StrEnum):
    ALL = "all"
    """The matrices of attention and MLP in every layer. Experts have no adapters: the engine
    "mcore" leaves them as they are, "fsdp" asks for "attention"."""
    ATTENTION = "attention"
    """The matrices of attention alone."""


class LoraConfig(Section):
    rank: Annotated[int, Within(le=65_536)] = Field(default=0, ge=0)
    """Rank of the adapters. 0: none, all weights are trained."""
    alpha: Annotated[float, Within(le=LARGE)] = Field(default=32.0, gt=0)
    """An adapter's product is multiplied by alpha / rank."""
    targets: LoraTargets = LoraTargets.ALL
    """Which matrices have adapters: "all" of attention and MLP, or those of "attention"."""

    def require_trained(self, model: str) -> None:
        """Raises ValueError where `model` starts from random weights."""
        if self.rank and model == BUNDLED:
            raise ValueError(
                "trainer.lora adapts a trained model, and policy.model = 'bundled' starts from "
                "random weights: name a model, or remove [trainer.lora]"
            )

    @property
    def scale(self) -> float:
        return self.alpha / self.rank
