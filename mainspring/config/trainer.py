"""Section [trainer]: steps, batches, the algorithm and its ranks."""

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from mainspring.algorithms.gap import GapConfig
from mainspring.config.optimizer import OptimizerConfig, OptimizerName, WarmStartConfig
from mainspring.config.section import Section


class Aggregation(StrEnum):
    TOKEN_MEAN = "token_mean"
    """Sum over all action tokens of the batch, divided by their number (DAPO)."""
    SEQ_MEAN_TOKEN_MEAN = "seq_mean_token_mean"
    """Mean over samples of each sample's token mean (the original GRPO)."""
    SEQ_MEAN_TOKEN_SUM = "seq_mean_token_sum"
    """Mean over samples of each sample's token sum (Dr. GRPO up to a constant)."""


class Device(StrEnum):
    CUDA = "cuda"
    """One GPU for each rank; the campaign fails where there are fewer."""
    CPU = "cpu"
    """No GPU, also where there is one."""


class TrainerConfig(Section):
    num_steps: int = Field(default=100, ge=1)
    """Optimizer steps of the whole campaign."""
    groups_per_step: int = Field(default=8, ge=1)
    """Groups, so tasks, in the batch of a step."""
    group_size: int = Field(default=8, ge=2)
    """Rollouts of each task, compared with each other."""
    min_scored: int | None = Field(default=None, ge=1)
    """Scored rollouts that a group needs; with fewer it is masked and replaced. Unset: half of
    `group_size`, at least 2."""
    filter: str = "mixed"
    """Which groups a step may use; others are flat and replaced. "mixed": those whose rewards
    differ, as others teach nothing. "none": all with enough scored rollouts. Or a function of your
    own as "package.module:function"."""
    max_flat_groups: int | None = Field(default=None, ge=1)
    """Flat groups in a row before the campaign fails. Unset: 20 for each group of a
    step."""
    updates_per_step: int = Field(default=1, ge=1)
    """Passes over a step's batch, an optimizer update each (PPO's epochs); the clip bounds them."""
    max_staleness: int = Field(default=1, ge=0)
    """Steps that groups in flight and ready may be ahead of training, which bounds how many there
    are: 0 waits for each step, 1 overlaps with it. It does not bound the age of a token."""
    max_token_staleness: int | None = Field(default=None, ge=0)
    """Older tokens, in policy versions, are kept as context and masked from the loss; unset: none
    are."""
    advantage: str = "grpo"
    """How rewards of a group become advantages. "grpo": minus the group's mean, divided by its
    standard deviation. "dr_grpo": minus the mean only. Or a function of your own as
    "package.module:function"."""
    normalize_std: bool = True
    """Whether the advantage "grpo" divides by the group's standard deviation; off, it is
    "dr_grpo"."""
    loss: str = "clip"
    """The loss of a token. "clip": PPO's clipped objective with an entropy bonus. Or a function of
    your own as "package.module:function"."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The probability ratio is clipped below at 1 - this."""
    clip_high: float = Field(default=0.28, gt=0)
    """Asymmetric PPO clip ("clip higher", DAPO)."""
    aggregation: Aggregation = Aggregation.TOKEN_MEAN
    """How losses of tokens become one number."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    micro_batch_tokens: int = Field(default=8192, ge=64)
    """Token budget of one packed micro-batch."""
    optimizer: OptimizerConfig = OptimizerConfig()
    warm_start: WarmStartConfig | None = None
    engine: str = "plain"
    """What computes steps. "plain": Megatron-core in float32, for CPUs and small models. Or a class
    of your own as "package.module:Class"."""
    device: Device = Device.CUDA
    """Where the ranks compute."""
    tensor_parallel: int = Field(default=1, ge=1)
    """Ranks that share one copy of the model."""
    data_parallel: int = Field(default=1, ge=1)
    """Copies of the model that share a batch."""
    threads_per_rank: int = Field(default=1, ge=1)
    """OMP threads of each rank on CPU."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Newest checkpoints kept on disk."""
    gap: GapConfig = GapConfig()

    @property
    def flat_groups_bound(self) -> int:
        return self.max_flat_groups or 20 * self.groups_per_step

    @model_validator(mode="after")
    def _enough_can_be_scored(self) -> Self:
        if (self.min_scored or 0) > self.group_size:
            raise ValueError(
                f"min_scored = {self.min_scored} is more than group_size = {self.group_size}"
            )
        return self

    @model_validator(mode="after")
    def _muon_is_not_sharded(self) -> Self:
        if self.optimizer.name is OptimizerName.MUON and self.tensor_parallel > 1:
            raise ValueError(
                "optimizer.name = 'muon' orthogonalises whole matrices: set tensor_parallel = 1"
            )
        return self
