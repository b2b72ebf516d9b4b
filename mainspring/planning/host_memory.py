"""Memory of the host that ranks run on: while a model is read, in steps, and in a checkpoint.

For ranks on GPUs; on CPU a rank's own memory is its host's, and is counted there. Invariant: ranks
of one host do each of these at the same time.
"""

from dataclasses import dataclass

from mainspring.config.trainer import TrainerConfig
from mainspring.config.training.parallel import Device
from mainspring.planning.engine_facts import facts_of
from mainspring.planning.memory import (
    CPU_REST_BYTES,
    MemoryPart,
    RankMemory,
    critic_moments_bytes,
    critic_weights_bytes,
    gradients_bytes,
    import_bytes,
    optimizer_bytes,
    weights_bytes,
)
from mainspring.planning.model_shape import ModelShape

RANKS_PER_HOST = 8
"""GPUs of a host; assumed."""
FILE_BYTES = 4 << 30
"""Size of one exported file: a rank that writes collects as much."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Memory of the host with the most to do."""

    num_ranks: int
    import_bytes: int
    step_bytes: int
    checkpoint_bytes: int

    @property
    def peak_bytes(self) -> int:
        return max(self.import_bytes, self.step_bytes, self.checkpoint_bytes)


def host_memory(
    shape: ModelShape, trainer: TrainerConfig, ranks: tuple[RankMemory, ...]
) -> HostMemory:
    num_ranks = min(RANKS_PER_HOST, trainer.world_size)
    if trainer.device is Device.CPU:
        num_ranks = trainer.world_size
        imported = sum(rank.kind.num_ranks * rank.moments[0].num_bytes for rank in ranks)
        exported = sum(rank.kind.num_ranks * rank.moments[-1].num_bytes for rank in ranks)
        steps = sum(
            rank.kind.num_ranks * max(moment.num_bytes for moment in rank.moments[1:-1])
            for rank in ranks
        )
        return HostMemory(num_ranks, imported, steps, exported)
    offloaded = [
        _offloaded_bytes(shape, trainer, rank) if trainer.optimizer_offload else 0 for rank in ranks
    ]
    if trainer.colocate:  # ranks wait here while engines have the devices
        offloaded = [
            max(own, _standing_bytes(shape, trainer, rank))
            for own, rank in zip(offloaded, ranks, strict=True)
        ]
    step = CPU_REST_BYTES + max(offloaded)
    reads = max(import_bytes(shape, trainer, rank.kind) for rank in ranks)
    writes = max(_written_bytes(shape, trainer, rank) for rank in ranks)
    return HostMemory(
        num_ranks=num_ranks,
        import_bytes=num_ranks * (CPU_REST_BYTES + reads),
        step_bytes=num_ranks * step,
        checkpoint_bytes=num_ranks * step + writes,
    )


def _standing_bytes(shape: ModelShape, trainer: TrainerConfig, rank: RankMemory) -> int:
    """Weights and moments, of a critic as well: what a rank holds between two steps."""
    critic = rank.moments[-1].bytes_of.get(MemoryPart.CRITIC, 0)
    own = weights_bytes(trainer, rank.kind) + optimizer_bytes(shape, trainer, rank.kind)
    return own + critic


def _offloaded_bytes(shape: ModelShape, trainer: TrainerConfig, rank: RankMemory) -> int:
    own = optimizer_bytes(shape, trainer, rank.kind)
    if facts_of(trainer).shards_weights:
        own += weights_bytes(trainer, rank.kind) + gradients_bytes(trainer, rank.kind)
    if trainer.critic is not None:
        own += critic_moments_bytes(shape, trainer, rank.kind)
        if facts_of(trainer).shards_weights:
            own += critic_weights_bytes(shape, trainer, rank.kind)
    return own


def _written_bytes(shape: ModelShape, trainer: TrainerConfig, rank: RankMemory) -> int:
    """By one copy of the model: the export, and parts of the checkpoint on their way to disk."""
    exported = shape.num_parameters * shape.file_bytes_per_weight
    # Ranks of a host copy their part of weights and optimizer before it is written.
    copied = weights_bytes(trainer, rank.kind)
    copied += optimizer_bytes(shape, trainer, rank.kind)
    num_ranks = min(RANKS_PER_HOST, trainer.world_size)
    return num_ranks * copied + min(FILE_BYTES, exported)
