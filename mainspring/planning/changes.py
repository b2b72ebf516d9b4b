"""Changes to [trainer] that make a campaign fit a GPU: found by planning each, never guessed.

Invariant: what is proposed is a valid configuration that was planned and fits.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from pydantic import ValidationError

from mainspring.config.campaign import CampaignConfig
from mainspring.config.trainer import TrainerConfig
from mainspring.config.training.parallel import MCORE, PLAIN, Device, Recompute
from mainspring.errors import ModelError
from mainspring.planning.assumptions import Given
from mainspring.planning.model_shape import ModelShape
from mainspring.planning.plan import plan_of

MOST = 3
"""Proposals; more are no easier to choose from."""
MOST_AT_ONCE = 3
FACTORS = (2, 4, 8)
MOST_TENSOR_PARALLEL = 8
"""GPUs of a host: layers shared over a network are slow."""


@dataclass(frozen=True, slots=True)
class Change:
    fields: dict[str, Any]
    """New values of [trainer]."""
    peak_bytes: int
    """Peak of the largest rank, once changed."""
    num_ranks: int

    def __str__(self) -> str:
        return ", ".join(f"{name} = {_toml(value)}" for name, value in self.fields.items())


def changes_that_fit(
    config: CampaignConfig, shape: ModelShape, given: Given, gpu_bytes: int
) -> list[Change]:
    """With the fewest GPUs first, and the fewest fields; empty where none of them suffices."""
    single = list(_candidates(config))
    fit: list[Change] = []
    for num in range(1, MOST_AT_ONCE + 1):
        for chosen in combinations(single, num):
            fields = {name: value for candidate in chosen for name, value in candidate.items()}
            if len(fields) < sum(map(len, chosen)):
                continue  # two of them set the same field
            planned = _planned(config, shape, given, fields)
            if planned is not None and planned.peak_bytes <= gpu_bytes:
                fit.append(planned)
    fit.sort(key=lambda change: (change.num_ranks, len(change.fields)))
    picked: list[Change] = []
    for change in fit:
        # One that holds a picked one's fields changes more than it must.
        if not any(other.fields.items() <= change.fields.items() for other in picked):
            picked.append(change)
    return picked[:MOST]


def _candidates(config: CampaignConfig) -> Iterator[dict[str, Any]]:
    """From those that cost little to those that cost GPUs."""
    trainer = config.trainer
    if trainer.micro_batch_tokens > config.policy.max_context:
        yield {"micro_batch_tokens": config.policy.max_context}
    if trainer.engine_name == PLAIN and trainer.device is Device.CUDA:
        yield {"engine": MCORE}
    if trainer.dtype.value == "float32" and trainer.device is Device.CUDA:
        yield {"dtype": "bfloat16"}
    if trainer.tensor_parallel > 1 and not trainer.sequence_parallel:
        yield {"sequence_parallel": True}
    if trainer.recompute is Recompute.NONE:
        yield {"recompute": Recompute.MLP.value}
    if trainer.recompute is not Recompute.FULL:
        yield {"recompute": Recompute.FULL.value}
    if not trainer.optimizer_offload and trainer.device is Device.CUDA:
        yield {"optimizer_offload": True}
    for name in ("tensor_parallel", "pipeline_parallel", "context_parallel", "data_parallel"):
        for factor in FACTORS:
            size = factor * getattr(trainer, name)
            if name == "tensor_parallel" and size > MOST_TENSOR_PARALLEL:
                continue
            if name != "data_parallel" and trainer.data_parallel % factor == 0:
                yield {name: size, "data_parallel": trainer.data_parallel // factor}
            yield {name: size}


def _planned(
    config: CampaignConfig, shape: ModelShape, given: Given, fields: dict[str, Any]
) -> Change | None:
    """None where the configuration or the model refuses it."""
    try:
        trainer = TrainerConfig.model_validate(config.trainer.model_dump() | fields)
        changed = config.model_copy(update={"trainer": trainer})
        plan = plan_of(changed, shape, given)
    except (ValidationError, ModelError):
        return None
    return Change(fields, plan.largest.peak.num_bytes, trainer.world_size)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
