"""How each step engine uses memory: what the formulas ask, in one place.

A change of an engine changes its line here. Engines of your own are planned as "mcore".
"""

from dataclasses import dataclass

from mainspring.algorithms.gap import Dtype
from mainspring.config.training.parallel import FSDP, PLAIN, Device, ParallelConfig
from mainspring.model_folder.refusals import FolderUse


@dataclass(frozen=True, slots=True)
class EngineFacts:
    shards_weights: bool
    """Whether data-parallel ranks share weights and gradients, which then stay in float32."""
    shards_optimizer: bool
    """Whether data-parallel and context-parallel copies share the optimizer's state."""
    has_gradient_buffer: bool
    """Whether gradients lie in a float32 buffer of their own from the start."""
    reduces_through_copy: bool
    """Whether gradients are copied into one flat buffer to add them up over copies."""


PLAIN_FACTS = EngineFacts(
    shards_weights=False,
    shards_optimizer=False,
    has_gradient_buffer=False,
    reduces_through_copy=True,
)
MCORE_FACTS = EngineFacts(
    shards_weights=False,
    shards_optimizer=True,
    has_gradient_buffer=True,
    reduces_through_copy=False,
)
FSDP_FACTS = EngineFacts(
    shards_weights=True,
    shards_optimizer=True,
    has_gradient_buffer=False,
    reduces_through_copy=False,
)


def facts_of(parallel: ParallelConfig) -> EngineFacts:
    return {PLAIN: PLAIN_FACTS, FSDP: FSDP_FACTS}.get(parallel.engine_name, MCORE_FACTS)


def folder_use(parallel: ParallelConfig) -> FolderUse:
    """Use that the engine makes of a model's folder."""
    return FolderUse.ANY_MODEL if parallel.engine_name == FSDP else FolderUse.TRAINED


def bytes_per_value(parallel: ParallelConfig) -> int:
    """Bytes per value of weights and activations."""
    return 2 if parallel.dtype is Dtype.BFLOAT16 else 4


def has_keys_by_query_head(parallel: ParallelConfig) -> bool:
    """Whether attention gives each query head keys and values of its own: no fused kernel on GPUs
    takes float32 with shared key heads."""
    return parallel.device is Device.CUDA and parallel.dtype is Dtype.FLOAT32
