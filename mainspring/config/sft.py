"""A supervised run, which trains a model on stored or imported trajectories, and its file.

Invariants: the sections that a campaign's rollouts need are no part of the file, and keep their
defaults in the stored run; what the run's ranks are built from is a campaign's configuration
(`ranks`), so that engines, checkpoints and parallel sizes are those of campaigns.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, model_validator

from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.run import NamedConfig, RunConfig
from mainspring.config.section import BUNDLED, LARGE, MANY, MANY_TOKENS, STORED, Section, Within
from mainspring.config.tracking import TrackingConfig
from mainspring.config.training.method_defaults import SUPERVISED_LORA_LR, filled
from mainspring.config.training.optimizer import OptimizerConfig, WarmStartConfig
from mainspring.config.training.parallel import ParallelConfig
from mainspring.status import CampaignKind


class OverlongSample(StrEnum):
    REFUSE = "refuse"
    """The run is refused, with their number."""
    SKIP = "skip"
    """They are left out, and counted."""


class SftSource(Section):
    campaign: str | None = None
    """Campaign or evaluation whose stored rollouts are trained on, in the tokens that were served.
    Its model must have the same tokenizer."""
    file: str | None = None
    """File of JSON lines, JSON list or parquet table (absolute, or relative to this file): a chat
    under "messages" in each line, as `mainspring rollout export --format sft` writes it, or under
    "conversations" (ShareGPT), or "token_ids" and "action_mask"."""
    min_reward: Annotated[float | None, Within(ge=-LARGE * LARGE, le=LARGE * LARGE)] = None
    """Minimum reward of a rollout. Unset: rollouts that resolved their task."""
    max_per_task: Annotated[int | None, Within(le=MANY)] = Field(default=None, ge=1)
    """Number of rollouts of one task: those of the highest reward, then the earliest. Unset:
    all."""
    min_version: Annotated[int | None, Within(le=MANY)] = Field(default=None, ge=0)
    """Rollouts with a token of an older policy version are left out."""
    max_version: Annotated[int | None, Within(le=MANY)] = Field(default=None, ge=0)
    """Rollouts with a token of a newer policy version are left out."""

    @model_validator(mode="after")
    def _comes_from_one_place(self) -> Self:
        if (self.campaign is None) == (self.file is None):
            raise ValueError("a source needs either campaign or file")
        if self.file is not None:
            for name in ("min_reward", "max_per_task", "min_version", "max_version"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{name} chooses among the rollouts of a campaign: a file is taken whole"
                    )
        return self

    @property
    def named(self) -> str:
        """For messages."""
        return f"campaign {self.campaign}" if self.campaign is not None else f"file {self.file}"


class SftData(Section):
    sources: Annotated[tuple[SftSource, ...], Field(min_length=1)]
    """Samples to train on; sources are put one after the other, and then shuffled."""
    overlong: OverlongSample = OverlongSample.REFUSE
    """Fate of samples that are longer than `trainer.max_tokens`."""


class SftOptimizerConfig(OptimizerConfig):
    lr: Annotated[float, Within(le=10)] = Field(default=1e-5, gt=0)
    """AdamW's learning rate. Unset with [trainer.lora]: 1e-4."""
    warmup_steps: Annotated[int, Within(le=MANY)] = Field(default=10, ge=0)
    """Steps of linear warm-up. The rate also falls linearly, to `final_lr_fraction` at the end."""
    final_lr_fraction: Annotated[float, Within()] = Field(default=0.1, ge=0, le=1)
    """Learning rate of the last step, as a share of the full one."""


class SftTrainerConfig(ParallelConfig):
    num_epochs: Annotated[int | None, Within(le=MANY)] = Field(default=None, ge=1)
    """Times that every sample is trained on; the last step may have fewer samples. Unset: once,
    unless `num_steps` is set."""
    num_steps: Annotated[int | None, Within(le=MANY)] = Field(default=None, ge=1)
    """Steps of the whole run, instead of `num_epochs`."""
    batch_size: Annotated[int, Within(le=MANY)] = Field(default=32, ge=1)
    """Number of samples of a step."""
    max_tokens: Annotated[int | None, Within(le=MANY_TOKENS)] = Field(default=None, ge=2)
    """Maximum number of tokens of a sample. Unset: the model's own maximum."""
    checkpoint_every: Annotated[int, Within(le=MANY)] = Field(default=100, ge=1)
    """Number of steps between two versions of the model, each with checkpoint and export; the last
    step makes one, too. A crash repeats the steps since the newest."""
    keep_checkpoints: Annotated[int, Within(le=MANY)] = Field(default=2, ge=1)
    """Number of newest versions kept on disk."""
    optimizer: SftOptimizerConfig = SftOptimizerConfig()

    @model_validator(mode="before")
    @classmethod
    def _methods_have_defaults(cls, raw: Any, info: ValidationInfo) -> Any:
        return filled(raw, info, SUPERVISED_LORA_LR)

    @model_validator(mode="after")
    def _length_is_given_once(self) -> Self:
        if self.num_steps is not None and self.num_epochs is not None:
            raise ValueError("num_steps and num_epochs both tell the run's length: remove one")
        return self

    @model_validator(mode="after")
    def _the_optimizer_can_move_it(self) -> Self:
        self.check_optimizer(self.optimizer)
        return self

    def steps_of(self, num_samples: int) -> int:
        """Steps of the whole run, on this number of samples."""
        return self.num_steps or -(-num_samples * (self.num_epochs or 1) // self.batch_size)


class SftConfig(RunConfig):
    kind: Literal[CampaignKind.SFT] = Field(default=CampaignKind.SFT, exclude=True)
    data: SftData
    trainer: SftTrainerConfig = SftTrainerConfig()
    tracking: TrackingConfig = TrackingConfig()

    @property
    def ranks(self) -> CampaignConfig:
        """Configuration of its ranks: a campaign of this model, layout and optimizer. The bundled
        model begins with its random weights, and with the tokenizer of the agent "bundled"."""
        shared = {name: getattr(self.trainer, name) for name in ParallelConfig.model_fields}
        bundled = self.policy.model == BUNDLED
        warm = WarmStartConfig(copy_steps=0, steps=0) if bundled else None
        trainer = shared | {"optimizer": self.trainer.optimizer.model_dump(), "warm_start": warm}
        fields = {"name": self.name, "seed": self.seed, "policy": self.policy, "trainer": trainer}
        fields |= {"agent": {"kind": BUNDLED}} if bundled else {}
        return CampaignConfig.model_validate(fields, context=STORED)


class SftPolicy(Section):
    model: str = BUNDLED
    """Hugging Face model directory (absolute, or relative to this file), such as an export of an
    earlier run; or "bundled", which begins with random weights."""


class SftFile(NamedConfig):
    """File that `mainspring sft FILE` reads."""

    policy: SftPolicy = SftPolicy()
    data: SftData
    trainer: SftTrainerConfig = SftTrainerConfig()
    tracking: TrackingConfig = TrackingConfig()

    @model_validator(mode="after")
    def _adapters_need_a_trained_model(self) -> Self:
        self.trainer.lora.require_trained(self.policy.model)
        return self

    @model_validator(mode="after")
    def _has_no_rollouts_to_trace(self) -> Self:
        if self.tracking.mlflow is not None and self.tracking.mlflow.traces_per_step:
            raise ValueError(
                "tracking.mlflow.traces_per_step: a supervised run has no rollouts of its own; "
                "remove it"
            )
        return self

    def config(self) -> SftConfig:
        return SftConfig(
            name=self.name,
            seed=self.seed,
            policy=PolicyConfig(model=self.policy.model),
            data=self.data,
            trainer=self.trainer,
            tracking=self.tracking,
        )
