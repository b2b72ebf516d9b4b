"""Bytes that a rank's forward pass keeps for its backward pass, as functions of its tokens.

Counted in the layers that Megatron-core builds without Transformer Engine: each number below is one
tensor that autograd saves, found with saved-tensor hooks (`cli/bench/measure_plan.py` compares
whole runs). They depend on tokens, not on how these are padded or packed. A fused kernel saves
less, so on GPUs with Transformer Engine this is an upper bound.
"""

from dataclasses import dataclass

from mainspring.config.training.parallel import ParallelConfig, Recompute
from mainspring.planning.engine_facts import bytes_per_value, has_keys_by_query_head
from mainspring.planning.model_shape import ModelShape
from mainspring.planning.rank_kinds import RankKind

FLOAT32_BYTES = 4
MMAP_BYTES = 32 << 20
"""Tensors on CPU below this size come from malloc's heap, which does not shrink (glibc)."""
CHUNK_BYTES = 64 << 20
"""Bytes of the float32 logits of one chunk of the output layer; the trainer takes it from here."""
KEPT_BYTES = 2 * CHUNK_BYTES
"""Bytes of logits kept for the backward pass, which saves an eighth of the output layer's work; the
trainer takes it from here."""
CHUNK_COPIES = 5
"""Tensors of a chunk's size that exist at once."""


@dataclass(frozen=True, slots=True)
class BatchTokens:
    """Tokens that one micro-batch brings to a rank."""

    num: int
    """Tokens of the micro-batch, padding included, over all ranks that share its sequences."""
    longest: int
    """Tokens of its longest sequence."""
    num_actions: int
    """Tokens whose log-probs are wanted."""


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """Bytes of one layer and one micro-batch."""

    input: int
    """Its input alone: what full recomputation keeps."""
    hidden: int
    """Two norms: each keeps its input, the normalised values and its output."""
    mlp: int
    attention: int
    """Queries, keys, values and what attention came to, before and after norm and rotation."""
    work: int
    """More than is kept exists for a moment in the backward pass of the MLP."""

    @property
    def kept(self) -> int:
        return self.hidden + self.mlp + self.attention

    @property
    def from_heap(self) -> int:
        """Bytes kept in tensors that are small enough for malloc's heap."""
        return sum(
            all_of_them
            for all_of_them, one_tensor in (
                (self.hidden, self.input),
                (2 * self.mlp // 5, 2 * self.mlp // 5),  # gate and up together
                (3 * self.mlp // 5, self.mlp // 5),
                (self.attention, self.attention // 8),
            )
            if one_tensor < MMAP_BYTES
        )


@dataclass(frozen=True, slots=True)
class KeptBytes:
    """Bytes kept by all layers of a rank and one micro-batch, when its forward pass ends."""

    activations: int
    attention: int
    again: int
    """Bytes that the backward pass adds at its largest layer."""
    from_heap: int
    """Bytes of activations and attention, as `LayerBytes.from_heap`."""


def layer_bytes(
    shape: ModelShape, parallel: ParallelConfig, tokens: BatchTokens, *, has_mask: bool = False
) -> LayerBytes:
    """`has_mask`: attention has a mask of all pairs of tokens (reproducible schedule)."""
    width, tensor = bytes_per_value(parallel), parallel.tensor_parallel
    here = -(-tokens.num // parallel.context_parallel)
    # Sequence parallelism shares what lies between the matrices; otherwise each rank has all.
    outside = -(-here // tensor) if parallel.sequence_parallel else here
    hidden = outside * shape.hidden_size * width
    if shape.num_experts:
        values = shape.experts_per_token * (5 * shape.expert_intermediate_size)
        values += 2 * shape.experts_per_token * shape.hidden_size
        mlp = outside * values * width
        work = 2 * outside * shape.experts_per_token * shape.expert_intermediate_size * width
    else:
        # Gate and up together, silu of gate, up, and their product: 5 times the width.
        mlp = here * 5 * shape.intermediate_size // tensor * width
        work = here * 2 * shape.intermediate_size // tensor * width
    attention = here * _attention_values(shape, parallel) // tensor * width
    attention += here * (shape.num_heads // tensor) * FLOAT32_BYTES
    if parallel.context_parallel > 1:  # keys and values of whole sequences
        attention += tokens.num * 2 * shape.kv_width // tensor * width
    if has_keys_by_query_head(parallel):
        attention += here * 2 * (shape.q_width - shape.kv_width) // tensor * width
    if has_mask:
        attention += tokens.longest**2 * FLOAT32_BYTES
    return LayerBytes(hidden, 6 * hidden, mlp, attention, max(0, work - 2 * hidden))


def _attention_values(shape: ModelShape, parallel: ParallelConfig) -> int:
    """For each token, of all tensor-parallel ranks together."""
    q, k = shape.q_width, shape.kv_width
    values = q + 2 * k  # as the first matrix gives them
    values += 2 * q + k  # rotated queries and keys, and the result
    if shape.has_qk_norm:
        values += q + k
        if q != k:  # a copy of the queries, which do not lie together
            values += q
    # Sines and cosines, twice each: they are not shared by tensor parallelism.
    return values + 4 * shape.head_dim * parallel.tensor_parallel


def kept_bytes(
    shape: ModelShape,
    parallel: ParallelConfig,
    kind: RankKind,
    tokens: BatchTokens,
    *,
    has_mask: bool = False,
) -> KeptBytes:
    layer = layer_bytes(shape, parallel, tokens, has_mask=has_mask)
    final = layer.hidden // 2 if kind.has_output else 0
    match parallel.recompute:
        case Recompute.NONE:
            activations, attention = layer.hidden + layer.mlp, layer.attention
            again = layer.work
        case Recompute.MLP:
            activations, attention = layer.hidden, layer.attention
            again = layer.mlp + layer.work
        case Recompute.FULL:
            activations, attention = layer.input, 0
            again = layer.kept + layer.work
    kept = kind.num_layers * (activations + attention) + final
    return KeptBytes(
        activations=kind.num_layers * activations + final,
        attention=kind.num_layers * attention,
        again=again,
        from_heap=kept * layer.from_heap // layer.kept,
    )


def logits_bytes(
    shape: ModelShape, parallel: ParallelConfig, kind: RankKind, tokens: BatchTokens
) -> int:
    """Bytes of the output layer while its backward pass runs: of action tokens, in chunks."""
    if not kind.has_output:
        return 0
    width = bytes_per_value(parallel)
    columns = kind.output_parameters // shape.hidden_size
    row = columns * FLOAT32_BYTES
    num_actions = -(-tokens.num_actions // parallel.context_parallel)
    chunk = CHUNK_COPIES * min(CHUNK_BYTES, num_actions * row)
    # Rows of action tokens and their gradient, and the weight's gradient in float32.
    rows = 2 * num_actions * shape.hidden_size * width
    copy = 0 if width == FLOAT32_BYTES else kind.output_parameters * width
    kept = min(KEPT_BYTES, num_actions * row)
    return chunk + kept + rows + kind.output_parameters * FLOAT32_BYTES + copy
