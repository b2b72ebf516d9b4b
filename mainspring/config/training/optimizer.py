"""Sections [trainer.optimizer] and [trainer.warm_start] of a campaign file."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from mainspring.config.section import MANY, Counts, Section, Within


class OptimizerName(StrEnum):
    ADAMW = "adamw"
    """torch AdamW on everything."""
    MUON = "muon"
    """torch Muon on hidden matrices, AdamW on the rest; needs tensor_parallel = 1."""


class OptimizerConfig(Section):
    name: OptimizerName = OptimizerName.ADAMW
    """Name of the optimizer."""
    lr: Annotated[float, Within(le=10), Counts.STEPS] = Field(default=1e-6, gt=0)
    """AdamW's learning rate. Unset with [trainer.lora]: 1e-5."""
    muon_lr: Annotated[float, Within(le=10), Counts.STEPS] = Field(default=0.005, gt=0)
    """Muon's learning rate (hidden matrices)."""
    betas: Annotated[tuple[float, float], Within(ge=0, lt=1)] = (0.9, 0.95)
    """AdamW's decay of first and second moments."""
    eps: Annotated[float, Within(le=1)] = Field(default=1e-8, gt=0)
    """AdamW's term beside the square root of the second moment."""
    muon_momentum: Annotated[float, Within()] = Field(default=0.9, ge=0, lt=1)
    """Muon's momentum."""
    weight_decay: Annotated[float, Within(le=100)] = Field(default=0.0, ge=0)
    """Decoupled weight decay, on all weights."""
    warmup_steps: Annotated[int, Within(le=MANY), Counts.STEPS] = Field(default=3, ge=0)
    """Steps of linear warm-up. The rate also falls linearly, to `final_lr_fraction` at the end."""
    final_lr_fraction: Annotated[float, Within(), Counts.STEPS] = Field(default=0.3, ge=0, le=1)
    """Learning rate of the last step, as a share of the full one."""
    max_grad_norm: Annotated[float, Within(le=1e12), Counts.STEPS] = Field(default=1.0, gt=0)
    """Larger gradients are scaled down to this norm."""


class WarmStartConfig(Section):
    """Supervised warm start on generated trajectories whose edits are drawn at random. They are
    played by the campaign's agent, with its context."""

    copy_steps: Annotated[int, Within(le=MANY)] = Field(default=200, ge=0)
    """Steps on repeated random segments, which teach copying: without it nothing is learned."""
    copy_batch_size: Annotated[int, Within(le=MANY)] = Field(default=16, ge=1)
    """Number of segments in a copy step."""
    steps: Annotated[int, Within(le=MANY)] = Field(default=500, ge=0)
    """Supervised steps after the copy steps."""
    batch_size: Annotated[int, Within(le=MANY)] = Field(default=8, ge=1)
    """Number of trajectories in a supervised step."""
    lr: Annotated[float, Within(le=10)] = Field(default=4e-3, gt=0)
    """AdamW's learning rate."""
    muon_lr: Annotated[float, Within(le=10)] = Field(default=0.02, gt=0)
    """Muon's learning rate (hidden matrices)."""
    context_loss_weight: Annotated[float, Within()] = Field(default=0.2, ge=0, le=1)
    """Loss weight of tokens that the model does not write (prompts and observations)."""
    threads_per_rank: Annotated[int, Within(le=4096)] = Field(default=1, ge=1)
    """OMP threads of each rank on CPU in the warm start, when no rollouts need the cores."""
