"""The kinds of ranks of a trainer, and the parameters that each one holds.

Ranks of one pipeline stage are alike; the first stage has the embedding, the last one the output
layer. Owns what parallel sizes must divide. Raises ModelError naming both numbers.
"""

from dataclasses import dataclass

from mainspring.config.training.lora import LoraTargets
from mainspring.config.training.parallel import FSDP, PLAIN, ParallelConfig
from mainspring.errors import ModelError
from mainspring.planning.model_shape import ModelShape


@dataclass(frozen=True, slots=True)
class RankKind:
    name: str
    num_ranks: int
    num_layers: int
    has_output: bool
    most_micro_batches: int
    """Forward passes that wait for their backward pass at once, if the batch has as many."""
    dense_parameters: int
    """Parameters of this rank, without experts."""
    expert_parameters: int
    """Parameters of this rank's experts."""
    output_parameters: int
    """Parameters of the output layer, also if it is the embedding's weight; 0 on other stages."""
    largest_parameters: int
    """Parameters of its largest weight."""
    adapter_parameters: int
    """Parameters of this rank's adapters; 0: all weights are trained."""
    adapted_parameters: int
    """Parameters of the matrices that have adapters."""

    @property
    def num_parameters(self) -> int:
        return self.dense_parameters + self.expert_parameters

    @property
    def trained_parameters(self) -> int:
        return self.adapter_parameters or self.num_parameters


def rank_kinds(shape: ModelShape, parallel: ParallelConfig) -> tuple[RankKind, ...]:
    """First, middle and last stages, as far as there are any. Raises ModelError."""
    check_divides(shape, parallel)
    stages = parallel.pipeline_parallel
    per_stage = parallel.world_size // stages
    if stages == 1:
        return (_kind(shape, parallel, "every rank", 0, per_stage),)
    kinds = [_kind(shape, parallel, "first stage", 0, per_stage)]
    if stages > 2:
        name = "middle stage" if stages == 3 else "middle stages"
        kinds.append(_kind(shape, parallel, name, 1, per_stage * (stages - 2)))
    return (*kinds, _kind(shape, parallel, "last stage", stages - 1, per_stage))


def check_divides(shape: ModelShape, parallel: ParallelConfig) -> None:
    """Raises ModelError for the first size that divides nothing."""
    if shape.num_experts and parallel.engine_name == PLAIN:
        raise ModelError(
            f"the engine {PLAIN!r} cannot train the {shape.num_experts} experts of a "
            f"{shape.model_type} model",
            remedy='set trainer.engine = "mcore", or use a dense model',
        )
    if parallel.engine_name == FSDP and parallel.data_parallel > shape.hidden_size:
        raise ModelError(
            f"trainer.data_parallel = {parallel.data_parallel} is more than the model's "
            f"hidden_size = {shape.hidden_size}, and the engine {FSDP!r} cuts each weight into as "
            "many parts",
            remedy=f"set trainer.data_parallel to {shape.hidden_size} or less",
        )
    tensor = parallel.tensor_parallel
    for name, size, field, value in (
        ("tensor_parallel", tensor, "num_attention_heads", shape.num_heads),
        ("tensor_parallel", tensor, "num_key_value_heads", shape.num_kv_heads),
        ("tensor_parallel", tensor, "intermediate_size", shape.intermediate_size),
        ("pipeline_parallel", parallel.pipeline_parallel, "num_hidden_layers", shape.num_layers),
        ("expert_parallel", parallel.expert_parallel, "num_experts", shape.num_experts),
    ):
        if value % size or (value == 0 and size > 1):
            raise ModelError(
                f"trainer.{name} = {size} does not divide the model's {field} = {value}",
                remedy=_divisors(name, value),
            )


def padded_vocab_size(shape: ModelShape, parallel: ParallelConfig) -> int:
    """Rows of the embedding over all tensor-parallel ranks."""
    size = parallel.tensor_parallel
    return -(-shape.vocab_size // size) * size


def _divisors(name: str, value: int) -> str:
    if value == 0:
        return f"remove trainer.{name}: the model has no experts"
    fit = [str(size) for size in range(1, min(value, 64) + 1) if value % size == 0]
    return f"set trainer.{name} to one of {', '.join(fit)}"


def _kind(
    shape: ModelShape, parallel: ParallelConfig, name: str, stage: int, num_ranks: int
) -> RankKind:
    tensor, stages = parallel.tensor_parallel, parallel.pipeline_parallel
    is_first, is_last = stage == 0, stage == stages - 1
    num_layers = shape.num_layers // stages
    embedding = padded_vocab_size(shape, parallel) // tensor * shape.hidden_size
    shared = (shape.attention_parameters + shape.mlp_parameters) // tensor
    dense = num_layers * (shared + shape.norm_parameters)
    if is_first:
        dense += embedding
    if is_last:
        dense += shape.hidden_size
        # The last stage has a copy of a tied embedding, unless it is the first one too.
        dense += embedding if not shape.is_tied or not is_first else 0
    own_experts = shape.num_experts // parallel.expert_parallel
    mlp = shape.expert_parameters or shape.mlp_parameters // tensor
    # Gate and up of an MLP are one weight of two thirds of it.
    qkv = shape.hidden_size * (shape.q_width + 2 * shape.kv_width) // tensor
    largest = max(qkv, 2 * mlp // 3)
    adapters, adapted = layer_adapters(shape, parallel, tensor)
    return RankKind(
        name=name,
        num_ranks=num_ranks,
        num_layers=num_layers,
        has_output=is_last,
        most_micro_batches=stages - stage,
        dense_parameters=dense,
        expert_parameters=num_layers * own_experts * shape.expert_parameters,
        output_parameters=embedding if is_last else 0,
        largest_parameters=max(largest, embedding if is_first or is_last else 0),
        adapter_parameters=num_layers * adapters,
        adapted_parameters=num_layers * adapted,
    )


def layer_adapters(shape: ModelShape, parallel: ParallelConfig, tensor: int) -> tuple[int, int]:
    """Parameters of the adapters of a layer, and of the matrices that have them, on each of
    `tensor` ranks that share it. Experts have none."""
    rank = parallel.lora.rank
    if not rank:
        return 0, 0
    # Matrices that Megatron-core stores as one have one A.
    is_fused = parallel.engine_name != FSDP
    hidden, inner = shape.hidden_size, shape.intermediate_size
    qkv = shape.q_width + 2 * shape.kv_width
    width = (1 if is_fused else 3) * hidden + (qkv + shape.q_width) // tensor + hidden
    adapted = hidden * (qkv + shape.q_width) // tensor
    if parallel.lora.targets is LoraTargets.ALL and not shape.num_experts:
        width += (1 if is_fused else 2) * hidden + 3 * inner // tensor + hidden
        adapted += shape.mlp_parameters // tensor
    return rank * width, adapted
