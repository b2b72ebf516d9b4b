"""Memory of a trainer's ranks, by part and by moment, for each kind of rank.

Invariant: a rank needs the largest of its moments; parts of a moment exist together, so they may be
added. Import and export have moments of their own, because they may need more than a step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from mainspring.algorithms.schedule import Schedule
from mainspring.config.campaign import CampaignConfig
from mainspring.config.trainer import TrainerConfig
from mainspring.config.training.optimizer import OptimizerName
from mainspring.config.training.parallel import Device, Recompute
from mainspring.planning.activations import FLOAT32_BYTES, BatchTokens, kept_bytes, logits_bytes
from mainspring.planning.engine_facts import bytes_per_value, facts_of
from mainspring.planning.model_shape import ModelShape
from mainspring.planning.rank_kinds import RankKind, rank_kinds

CPU_REST_BYTES = 430_000_000
"""Bytes of a rank on CPU with next to no model: Python, torch and Megatron-core; measured."""
CUDA_REST_BYTES = 3_000_000_000
"""Bytes of a GPU beside tensors: CUDA context, NCCL's buffers, workspaces of libraries; assumed."""
CUDA_GAP_SHARE = 0.05
"""Share of activations and logits that torch's allocator holds beyond them on a GPU; assumed."""


HEAP_SHARE = 0.8
"""Share of activations in small tensors that the heap of a rank on CPU holds beyond those in use,
because freed ones leave gaps of other sizes. Measured (cli/bench/measure_plan.py)."""


class MemoryPart(StrEnum):
    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    CRITIC = "critic"
    """Weights and optimizer state of the campaign's critic."""
    COMMUNICATION = "communication"
    ACTIVATIONS = "activations"
    ATTENTION = "attention"
    LOGITS = "logits"
    ALLOCATOR = "allocator"
    """Freed tensors that malloc on a CPU, or torch's allocator on a GPU, still holds."""
    REST = "rest"
    """Libraries, and on a GPU the CUDA context."""


class MomentName(StrEnum):
    IMPORT = "import"
    """Weights are read from the model's files."""
    LOGITS = "output layer"
    """The backward pass begins: activations of all layers, and logits."""
    BACKWARD = "backward pass"
    """Logits are gone; a layer's gradients are computed."""
    UPDATE = "update"
    """Gradients are added up over copies, and the optimizer moves the weights."""
    EXPORT = "export"
    """Weights are written for engines."""


@dataclass(frozen=True, slots=True)
class Moment:
    name: MomentName
    bytes_of: Mapping[MemoryPart, int]

    @property
    def num_bytes(self) -> int:
        return sum(self.bytes_of.values())


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Memory of the device of one rank: its GPU, or its process on CPU."""

    kind: RankKind
    moments: tuple[Moment, ...]

    @property
    def peak(self) -> Moment:
        return max(self.moments, key=lambda moment: moment.num_bytes)


def largest_micro_batch(config: CampaignConfig, action_share: float) -> BatchTokens:
    """A longer sequence than the budget is a micro-batch of its own, and a step has no more tokens
    than its rollouts."""
    trainer, longest = config.trainer, config.policy.max_context
    num_rollouts = -(-trainer.groups_per_step * trainer.group_size // trainer.data_parallel)
    num = max(longest, min(trainer.micro_batch_tokens, num_rollouts * longest))
    return BatchTokens(num, longest, round(num * action_share))


def memory_of_ranks(
    config: CampaignConfig, shape: ModelShape, tokens: BatchTokens, num_micro_batches: int
) -> tuple[RankMemory, ...]:
    """`num_micro_batches`: of one data-parallel copy in a step. Raises ModelError."""
    return tuple(
        RankMemory(kind, _moments(config, shape, kind, tokens, num_micro_batches))
        for kind in rank_kinds(shape, config.trainer)
    )


def _moments(
    config: CampaignConfig,
    shape: ModelShape,
    kind: RankKind,
    tokens: BatchTokens,
    num_micro_batches: int,
) -> tuple[Moment, ...]:
    trainer, facts = config.trainer, facts_of(config.trainer)
    weights, gradients = weights_bytes(trainer, kind), gradients_bytes(trainer, kind)
    critic_weights = 0
    if trainer.critic is not None:
        critic_weights = critic_weights_bytes(shape, trainer, kind)
    if facts.shards_weights and trainer.optimizer_offload:
        weights = gradients = critic_weights = 0
    optimizer = 0 if trainer.optimizer_offload else optimizer_bytes(shape, trainer, kind)
    on_cpu = trainer.device is Device.CPU
    rest = CPU_REST_BYTES if on_cpu else CUDA_REST_BYTES
    standing = {MemoryPart.WEIGHTS: weights, MemoryPart.OPTIMIZER: optimizer, MemoryPart.REST: rest}
    if trainer.critic is not None:
        standing[MemoryPart.CRITIC] = critic_bytes(shape, trainer, kind)

    has_mask = config.schedule is Schedule.REPRODUCIBLE
    kept = kept_bytes(shape, trainer, kind, tokens, has_mask=has_mask)
    waiting = min(kind.most_micro_batches, max(1, num_micro_batches))
    activations = waiting * (kept.activations + sums_bytes(trainer, kind))
    if on_cpu:
        gaps = round(waiting * kept.from_heap * HEAP_SHARE)
    else:
        gaps = round(waiting * (kept.activations + kept.attention) * CUDA_GAP_SHARE)
    communication = _sent_bytes(shape, trainer, tokens)
    if facts.shards_weights:
        communication += _whole_units_bytes(shape, trainer, kind)
    step = standing | {
        MemoryPart.GRADIENTS: gradients,
        MemoryPart.COMMUNICATION: communication,
        MemoryPart.ATTENTION: waiting * kept.attention,
        MemoryPart.ALLOCATOR: gaps,
    }
    at_output = step | {
        MemoryPart.ACTIVATIONS: activations,
        MemoryPart.LOGITS: logits_bytes(shape, trainer, kind, tokens),
    }
    backward = step | {MemoryPart.ACTIVATIONS: activations + kept.again}
    copies = trainer.data_parallel * trainer.context_parallel
    flat = gradients if facts.reduces_through_copy and copies > 1 else 0
    update = standing | {
        MemoryPart.GRADIENTS: gradients,
        MemoryPart.COMMUNICATION: flat,
        MemoryPart.ALLOCATOR: gaps,
    }
    update[MemoryPart.OPTIMIZER] += _update_bytes(trainer, kind)
    exported = standing | {
        MemoryPart.GRADIENTS: gradients if facts.has_gradient_buffer else 0,
        MemoryPart.COMMUNICATION: _gathered_bytes(shape, trainer, kind),
        MemoryPart.ALLOCATOR: gaps,
    }
    imported = {
        MemoryPart.WEIGHTS: weights,
        MemoryPart.REST: rest,
        MemoryPart.COMMUNICATION: import_bytes(shape, trainer, kind) if on_cpu else 0,
    }
    if trainer.critic is not None:
        imported[MemoryPart.CRITIC] = critic_weights
    return (
        Moment(MomentName.IMPORT, imported),
        *([Moment(MomentName.LOGITS, at_output)] if kind.has_output else []),
        Moment(MomentName.BACKWARD, backward),
        Moment(MomentName.UPDATE, update),
        Moment(MomentName.EXPORT, exported),
    )


def weights_bytes(trainer: TrainerConfig, kind: RankKind) -> int:
    """Weights of a rank between passes, adapters too."""
    width, adapters = bytes_per_value(trainer), kind.adapter_parameters
    if not facts_of(trainer).shards_weights:
        return width * (kind.num_parameters + adapters)
    # FSDP keeps what it trains in float32, and what is frozen in the numbers of the computation.
    frozen = width * kind.num_parameters if adapters else 0
    return -(-(frozen + FLOAT32_BYTES * kind.trained_parameters) // trainer.data_parallel)


def gradients_bytes(trainer: TrainerConfig, kind: RankKind) -> int:
    facts = facts_of(trainer)
    trained = kind.trained_parameters if facts.has_gradient_buffer else _moved(trainer, kind)
    return FLOAT32_BYTES * -(-trained // (trainer.data_parallel if facts.shards_weights else 1))


def _moved(trainer: TrainerConfig, kind: RankKind) -> int:
    """Most parameters that have gradients at one time: policy and critic follow each other, and a
    critic has no adapters."""
    return kind.trained_parameters if trainer.critic is None else kind.num_parameters


def sums_bytes(trainer: TrainerConfig, kind: RankKind) -> int:
    """Sums of frozen matrices and adapters that Megatron's layers keep for the backward pass of a
    micro-batch; FSDP's make none."""
    if facts_of(trainer).shards_weights:
        return 0
    layers = kind.num_layers if trainer.recompute is Recompute.FULL else 1
    return bytes_per_value(trainer) * kind.adapted_parameters // max(1, layers)


def _whole_units_bytes(shape: ModelShape, trainer: TrainerConfig, kind: RankKind) -> int:
    """Whole weights of FSDP's units while they compute: embedding and output layer, a layer, and
    the next one, which is gathered before; and the gradients of one of them."""
    width = bytes_per_value(trainer)
    layer = shape.layer_parameters
    root = kind.num_parameters - kind.num_layers * layer
    whole = width * (root + 2 * layer)
    if kind.adapter_parameters and trainer.critic is None:  # of which alone there are gradients
        return whole
    reduced = FLOAT32_BYTES * max(root, layer) if width < FLOAT32_BYTES else 0
    return whole + width * (root + layer) + reduced


def critic_parameters(shape: ModelShape, trainer: TrainerConfig, kind: RankKind) -> int:
    """Parameters of a rank's critic: the policy's without an output layer, and one number for each
    token."""
    # A last stage that is not the first keeps a copy of the embedding in its place.
    keeps = shape.is_tied or trainer.pipeline_parallel > 1
    output = 0 if keeps else kind.output_parameters
    head = shape.hidden_size + 1 if kind.has_output else 0
    return kind.num_parameters - output + head


def critic_weights_bytes(shape: ModelShape, trainer: TrainerConfig, kind: RankKind) -> int:
    parameters = critic_parameters(shape, trainer, kind)
    if facts_of(trainer).shards_weights:
        return FLOAT32_BYTES * -(-parameters // trainer.data_parallel)
    return parameters * bytes_per_value(trainer)


def critic_moments_bytes(shape: ModelShape, trainer: TrainerConfig, kind: RankKind) -> int:
    """State of its AdamW, for all of its weights."""
    parameters = critic_parameters(shape, trainer, kind)
    if not facts_of(trainer).shards_optimizer:
        return parameters * 2 * FLOAT32_BYTES
    return round(_whole_optimizer_bytes(shape, trainer, kind) * parameters / kind.num_parameters)


def critic_bytes(shape: ModelShape, trainer: TrainerConfig, kind: RankKind) -> int:
    """On the device between its steps. Its activations take the place of the policy's, which are
    freed before; its gradients too, where they have no buffer of their own."""
    facts, weights = facts_of(trainer), critic_weights_bytes(shape, trainer, kind)
    if facts.has_gradient_buffer:
        weights += FLOAT32_BYTES * critic_parameters(shape, trainer, kind)
    if not trainer.optimizer_offload:
        return weights + critic_moments_bytes(shape, trainer, kind)
    return 0 if facts.shards_weights else weights


def optimizer_bytes(shape: ModelShape, trainer: TrainerConfig, kind: RankKind) -> int:
    """State of what is trained."""
    if not kind.adapter_parameters:
        return _whole_optimizer_bytes(shape, trainer, kind)
    copies = trainer.data_parallel * trainer.context_parallel
    shards = copies if facts_of(trainer).shards_optimizer else 1
    return _state_bytes(trainer) * -(-kind.adapter_parameters // shards)


def _state_bytes(trainer: TrainerConfig) -> int:
    """Two moments of a parameter, and in bfloat16 a float32 copy of it, unless the weights that are
    trained are float32 themselves."""
    is_copied = bytes_per_value(trainer) == 2 and not facts_of(trainer).shards_weights
    return (3 if is_copied else 2) * FLOAT32_BYTES


def _whole_optimizer_bytes(shape: ModelShape, trainer: TrainerConfig, kind: RankKind) -> int:
    """Where all weights are trained."""
    bytes_each = _state_bytes(trainer)
    if facts_of(trainer).shards_optimizer:
        copies = trainer.data_parallel * trainer.context_parallel
        expert_copies = copies * trainer.tensor_parallel // trainer.expert_parallel
        shard = -(-kind.dense_parameters // copies)
        return bytes_each * (shard + -(-kind.expert_parameters // expert_copies))
    if trainer.optimizer.name is not OptimizerName.MUON:
        return bytes_each * kind.num_parameters
    # Muon keeps one moment of a hidden matrix, and copies of those that Megatron stores as one.
    fused = kind.num_layers * shape.hidden_size * (shape.q_width + 2 * shape.kv_width)
    fused += kind.num_layers * 2 * shape.hidden_size * shape.intermediate_size
    single = kind.num_layers * shape.hidden_size * (shape.q_width + shape.intermediate_size)
    others = kind.num_parameters - fused - single
    return bytes_each * others + FLOAT32_BYTES * (2 * fused + single)


def _update_bytes(trainer: TrainerConfig, kind: RankKind) -> int:
    """Bytes that the optimizer computes beside its state: on GPUs for all weights at once."""
    if trainer.device is Device.CUDA and not facts_of(trainer).shards_optimizer:
        return FLOAT32_BYTES * _moved(trainer, kind)
    return 2 * FLOAT32_BYTES * min(kind.largest_parameters, _moved(trainer, kind))


def _sent_bytes(shape: ModelShape, trainer: TrainerConfig, tokens: BatchTokens) -> int:
    """Between stages: what comes in and goes out, forward and backward. With sequence parallelism
    also a gathered input."""
    hidden = -(-tokens.num // trainer.context_parallel)
    hidden *= shape.hidden_size * bytes_per_value(trainer)
    shared = hidden // trainer.tensor_parallel if trainer.sequence_parallel else hidden
    between = 4 * shared if trainer.pipeline_parallel > 1 else 0
    return between + (hidden if trainer.sequence_parallel else 0)


def _gathered_bytes(shape: ModelShape, trainer: TrainerConfig, kind: RankKind) -> int:
    """On the device, for an export: the largest weight, from all ranks that share it."""
    return kind.largest_parameters * trainer.tensor_parallel * bytes_per_value(trainer)


def import_bytes(shape: ModelShape, trainer: TrainerConfig, kind: RankKind) -> int:
    """On the host of a rank beside its weights, while they are read."""
    stored = shape.file_bytes_per_weight
    whole = kind.largest_parameters * trainer.tensor_parallel
    return whole * stored + kind.largest_parameters * bytes_per_value(trainer)
