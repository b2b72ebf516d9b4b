"""Operations that a training step needs of a model: the one count for plans and for the metric MFU.

6 for each weight and token (2 forward, 4 backward), causal attention, and the output layer for the
tokens whose log-probs are wanted. What is computed twice to save memory is not counted here. Pure.
"""

from collections.abc import Sequence

from mainspring.planning.model_shape import ModelShape


def layer_flops(shape: ModelShape, num_tokens: float) -> float:
    return 6.0 * shape.num_active_parameters * num_tokens


def attention_flops(shape: ModelShape, num_pairs: float) -> float:
    """Scores and their sum over values, of half of all pairs; twice again in the backward pass.
    `num_pairs`: the squared lengths of all sequences, added up."""
    return 6.0 * shape.num_layers * shape.q_width * num_pairs


def output_flops(shape: ModelShape, num_wanted: float) -> float:
    """`num_wanted`: tokens whose log-probs are wanted."""
    return 6.0 * shape.embedding_parameters * num_wanted


def model_flops(shape: ModelShape, lengths: Sequence[int], num_wanted: int) -> float:
    """Operations of forward and backward pass over sequences of these lengths."""
    num_pairs = sum(length * length for length in lengths)
    return (
        layer_flops(shape, sum(lengths))
        + attention_flops(shape, num_pairs)
        + output_flops(shape, num_wanted)
    )
