"""The weights that a config.json describes, compared with those that the files have.

Of the families that are trained, whose names and shapes are known without transformers. Invariant:
what passes is loaded whole: no weight is missing, none is left over, none has another shape, and an
output layer that a tied model holds a second time is the embedding. Imported by `folder`.
"""

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path

from mainspring.errors import ModelError
from mainspring.model_folder.config_file import CONFIG, where
from mainspring.model_folder.sizes import Sizes
from mainspring.model_folder.weights import INDEX, SINGLE, Weight

EMBEDDING = "model.embed_tokens.weight"
OUTPUT = "lm_head.weight"
BELONG = f"give the {CONFIG} that belongs to the weights"
DTYPES = ("F32", "BF16", "F16")
_PART_BYTES = 16 << 20

Shape = tuple[int, ...]


def expected_weights(sizes: Sizes) -> Iterator[tuple[str, Shape]]:
    """Names in the files, with their shapes."""
    hidden = sizes.hidden_size
    yield EMBEDDING, (sizes.vocab_size, hidden)
    for layer in range(sizes.num_layers):
        for name, shape in _layer(sizes):
            yield f"model.layers.{layer}.{name}", shape
    yield "model.norm.weight", (hidden,)
    if not sizes.is_tied:
        yield OUTPUT, (sizes.vocab_size, hidden)


def check_weights(directory: Path, sizes: Sizes, weights: Mapping[str, Weight]) -> None:
    """Raises ModelError naming the file and the weight."""
    expected = dict(expected_weights(sizes))
    if sizes.is_tied and OUTPUT in weights:
        expected[OUTPUT] = expected[EMBEDDING]
    rows = (
        weights[EMBEDDING].shape[0] if EMBEDDING in weights and weights[EMBEDDING].shape else None
    )
    if rows not in (None, sizes.vocab_size):
        raise ModelError(
            f"{where(directory)}: {CONFIG} has vocab_size = {sizes.vocab_size}, the embedding in "
            f"{weights[EMBEDDING].file.name} has {rows} rows",
            remedy=BELONG,
        )
    for name, shape in expected.items():
        if name not in weights:
            files = directory / (INDEX if (directory / INDEX).is_file() else SINGLE)
            raise ModelError(
                f"weights {files}: weight {name} is missing, {CONFIG} describes it", remedy=BELONG
            )
        if weights[name].shape != shape:
            raise ModelError(
                f"weights {weights[name].file}: weight {name} is {list(weights[name].shape)}, "
                f"expected {list(shape)} as {CONFIG} describes it",
                remedy=BELONG,
            )
    for name, weight in weights.items():
        if name not in expected:
            raise ModelError(
                f"weights {weight.file}: weight {name} has no place in the model of {CONFIG}",
                remedy=f"{BELONG}, or save the model again without it",
            )
        if weight.dtype not in DTYPES:
            raise ModelError(
                f"weights {weight.file}: weight {name} is stored as {weight.dtype}, expected one "
                f"of {', '.join(DTYPES)}",
                remedy="use the weights in bfloat16, float16 or float32",
            )
    if sizes.is_tied and OUTPUT in weights and not _are_equal(weights[EMBEDDING], weights[OUTPUT]):
        raise ModelError(
            f"weights {weights[OUTPUT].file}: {OUTPUT} is not {EMBEDDING}, and {CONFIG} has "
            "tie_word_embeddings = true",
            remedy="set tie_word_embeddings to false, or save the model again without it",
        )


def _layer(sizes: Sizes) -> Iterator[tuple[str, Shape]]:
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    q_width, kv_width = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
    for kind, width in (("q", q_width), ("k", kv_width), ("v", kv_width)):
        yield f"self_attn.{kind}_proj.weight", (width, hidden)
        if sizes.has_qkv_bias:
            yield f"self_attn.{kind}_proj.bias", (width,)
    yield "self_attn.o_proj.weight", (hidden, q_width)
    if sizes.has_qk_norm:
        yield "self_attn.q_norm.weight", (sizes.head_dim,)
        yield "self_attn.k_norm.weight", (sizes.head_dim,)
    yield "input_layernorm.weight", (hidden,)
    yield "post_attention_layernorm.weight", (hidden,)
    if not sizes.num_experts:
        yield from _mlp("mlp", hidden, inner)
        return
    yield "mlp.gate.weight", (sizes.num_experts, hidden)
    for expert in range(sizes.num_experts):
        yield from _mlp(f"mlp.experts.{expert}", hidden, sizes.expert_intermediate_size)


def _mlp(name: str, hidden: int, inner: int) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.gate_proj.weight", (inner, hidden)
    yield f"{name}.up_proj.weight", (inner, hidden)
    yield f"{name}.down_proj.weight", (hidden, inner)


def _are_equal(first: Weight, second: Weight) -> bool:
    """By bytes, a part at a time: of a large model they are a gigabyte each."""
    if first.dtype != second.dtype:
        return False
    with (
        first.file.open("rb") as one,
        second.file.open("rb") as other,
        mmap.mmap(one.fileno(), 0, access=mmap.ACCESS_READ) as a,
        mmap.mmap(other.fileno(), 0, access=mmap.ACCESS_READ) as b,
    ):
        shift = second.start - first.start
        parts = range(first.start, first.end, _PART_BYTES)
        ends = [min(part + _PART_BYTES, first.end) for part in parts]
        return all(
            a[part:end] == b[part + shift : end + shift]
            for part, end in zip(parts, ends, strict=True)
        )
