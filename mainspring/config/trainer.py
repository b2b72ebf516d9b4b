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
    """One GPU for each rank; with fewer GPUs the campaign fails."""
    CPU = "cpu"
    """The CPU, also where there is a GPU."""


class TrainerConfig(Section):
    num_steps: int = Field(default=100, ge=1)
    """Steps of the whole campaign."""
    groups_per_step: int = Field(default=8, ge=1)
    """Groups in the batch of a step, one task each."""
    group_size: int = Field(default=8, ge=2)
    """Rollouts in a group; their rewards are compared with each other."""
    min_scored: int | None = Field(default=None, ge=1)
    """Minimum number of scored rollouts in a group; with fewer it is masked and replaced. Unset:
    half of `group_size`, at least 2."""
    filter: str = "mixed"
    """Which groups a step may use; others are flat and replaced. "mixed": those whose rewards
    differ, because others teach nothing. "none": all with enough scored rollouts. Or a function of
    your own as "package.module:function"."""
    max_flat_groups: int | None = Field(default=None, ge=1)
    """Number of flat groups in a row that end the campaign. Unset: 20 for each group of a step."""
    updates_per_step: int = Field(default=1, ge=1)
    """Passes over a step's batch, with one optimizer update each (PPO's epochs)."""
    max_staleness: int = Field(default=1, ge=0)
    """Number of steps that rollouts may be ahead of training: 0 waits for each step, 1 overlaps
    with it. It bounds the groups in flight and ready, not the age of a token."""
    max_token_staleness: int | None = Field(default=None, ge=0)
    """Tokens older than this number of policy versions are kept as context and masked from the
    loss. Unset: no token is masked."""
    advantage: str = "grpo"
    """How rewards of a group become advantages. "grpo": minus the group's mean, divided by its
    standard deviation. "dr_grpo": minus the mean only. Or a function of your own as
    "package.module:function"."""
    normalize_std: bool = True
    """Whether the advantage "grpo" divides by the group's standard deviation. If false, it is
    "dr_grpo"."""
    loss: str = "clip"
    """The loss of a token. "clip": PPO's clipped objective with an entropy bonus. Or a function of
    your own as "package.module:function"."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The probability ratio is clipped below at 1 - `clip_low`."""
    clip_high: float = Field(default=0.28, gt=0)
    """The probability ratio is clipped above at 1 + `clip_high` ("clip higher", DAPO)."""
    aggregation: Aggregation = Aggregation.TOKEN_MEAN
    """How the losses of all tokens become one number."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    micro_batch_tokens: int = Field(default=8192, ge=64)
    """Token budget of one packed micro-batch."""
    optimizer: OptimizerConfig = OptimizerConfig()
    warm_start: WarmStartConfig | None = None
    engine: str = "plain"
    """Step engine. "plain": Megatron-core in float32, for CPUs and small models. Or a class
    of your own as "package.module:Class"."""
    device: Device = Device.CUDA
    """Device of the ranks."""
    tensor_parallel: int = Field(default=1, ge=1)
    """Number of ranks that share one copy of the model."""
    data_parallel: int = Field(default=1, ge=1)
    """Number of copies of the model that share a batch."""
    threads_per_rank: int = Field(default=1, ge=1)
    """OMP threads of each rank on CPU."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Number of newest checkpoints kept on disk."""
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
