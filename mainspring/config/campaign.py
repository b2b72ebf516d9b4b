"""A campaign: the run that trains. One section for each part of it.

Invariants are those of `run`; the bundled model has a warm start, and no other has one.
"""

from typing import Literal, Self

from pydantic import Field, ValidationInfo, model_validator

from mainspring.algorithms.gap import GapBounds, bounds
from mainspring.config.eval_schedule import EvalSchedule
from mainspring.config.run import RunConfig
from mainspring.config.section import BUNDLED, STORED
from mainspring.config.trainer import TrainerConfig
from mainspring.status import CampaignKind


class CampaignConfig(RunConfig):
    kind: Literal[CampaignKind.TRAIN] = Field(default=CampaignKind.TRAIN, exclude=True)
    trainer: TrainerConfig = TrainerConfig()
    evaluation: EvalSchedule = EvalSchedule()

    @model_validator(mode="after")
    def _bundled_model_needs_a_warm_start(self) -> Self:
        if self.policy.model == BUNDLED and self.trainer.warm_start is None:
            raise ValueError(
                "policy.model = 'bundled' starts from random weights: add [trainer.warm_start]"
            )
        return self

    @model_validator(mode="after")
    def _warm_start_is_for_the_bundled_model(self, info: ValidationInfo) -> Self:
        bundled = self.policy.model == BUNDLED
        if self.trainer.warm_start is not None and not bundled and info.context != STORED:
            raise ValueError(
                f"[trainer.warm_start] would train {self.policy.model!r} on the bundled toy tasks: "
                "remove the section, or set policy.model = 'bundled'"
            )
        return self

    @property
    def gap_bounds(self) -> GapBounds:
        """Of [trainer.gap], with the defaults of the engines' dtype."""
        return bounds(self.trainer.gap, self.policy.dtype)

    @property
    def splits(self) -> tuple[str, ...]:
        """Splits of the tasks that it goes over, each once."""
        return tuple(dict.fromkeys(("train", *self.evaluation.splits)))
