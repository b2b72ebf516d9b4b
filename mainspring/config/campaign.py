"""The whole configuration of a campaign: one section for each part of it.

Invariants: unknown keys are refused; every bound stands on its field. The checked model is stored
as JSON with the campaign, so a resumed campaign never depends on the file again.
"""

from typing import Annotated, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from mainspring.algorithms.gap import GapBounds, bounds
from mainspring.config.agent import AgentConfig
from mainspring.config.evaluation import EvalConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.reward import RewardConfig
from mainspring.config.run import RunConfig
from mainspring.config.sandbox import SandboxConfig
from mainspring.config.section import BUNDLED, STORED, Section
from mainspring.config.tasks import TasksConfig
from mainspring.config.trainer import TrainerConfig
from mainspring.errors import UsageError
from mainspring.ids import campaign_id


class CampaignConfig(Section):
    name: Annotated[str, Field(min_length=1)]
    """Its id, in every id made of it: a-z, 0-9 and '-', at most 48."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Of tasks, model, order and sampling."""
    tasks: TasksConfig = TasksConfig()
    agent: AgentConfig = AgentConfig()
    policy: PolicyConfig = PolicyConfig()
    trainer: TrainerConfig = TrainerConfig()
    evaluation: EvalConfig = EvalConfig()
    sandbox: SandboxConfig = SandboxConfig()
    reward: RewardConfig = RewardConfig()
    run: RunConfig = RunConfig()

    @field_validator("name")
    @classmethod
    def _name_is_an_id(cls, name: str) -> str:
        try:
            return campaign_id(name)
        except UsageError as error:
            raise ValueError(str(error)) from None

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
    def task_source(self) -> str:
        """Where the campaign's tasks are listed in the store; bundled ones depend on the seed."""
        bundled = self.tasks.source == BUNDLED
        return f"{BUNDLED}-s{self.seed}" if bundled else self.tasks.source

    def split_size(self, split: str) -> int | None:
        """How many tasks of `split` the campaign uses; None: all of them."""
        if self.tasks.source != BUNDLED:
            return None
        return {
            "train": self.tasks.num_train,
            "heldout": self.tasks.num_heldout,
            "heldout_templates": self.tasks.num_heldout_templates,
        }.get(split, 0)
