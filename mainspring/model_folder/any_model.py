"""Models that the step engine `fsdp` takes: any causal language model, but for a few contents.

A config.json is judged without transformers: remote code, quantised weights, kinds of layers and of
rotary embeddings that a pack of sequences would compute otherwise than each by itself. What only
the model's code can tell, the engine's probe tells when it starts. Owns the sizes that a plan takes
of a family that it does not know, an estimate. Pure functions on a dict; imported by `refusals` and
`sizes`.
"""

from collections.abc import Iterator
from typing import Any

from mainspring.errors import ModelError
from mainspring.model_folder import rope
from mainspring.model_folder.config_file import CONFIG
from mainspring.model_folder.families import is_whole

DTYPES = ("float32", "bfloat16", "float16")
ENGINE = "the engine 'fsdp'"
LAYERS = (
    *("full_attention", "attention", "sliding_attention"),
    *("linear_attention", "mamba", "conv", "hybrid"),
    *("moe", "sparse", "dense", "mlp"),
)
"""Values of layer_types whose layers sequences can be kept apart in."""
_BY_LONGEST = ("dynamic", "longrope", "su")
"""Rotary embeddings whose frequencies depend on the longest sequence that is computed beside."""
OTHER_MODEL = "use another model"


def check(config: dict[str, Any], named: str) -> None:
    """Raises ModelError for the first content that cannot be trained."""
    for what, remedy in (*unreadable(config), *_untrained(text_of(config))):
        raise ModelError(f"{named}: {what} cannot be trained by {ENGINE}", remedy=remedy)
    if config.get("is_encoder_decoder"):
        raise ModelError(
            f"{named}: a model with an encoder (is_encoder_decoder) cannot be trained",
            remedy="use a causal language model, such as Qwen3ForCausalLM",
        )


def text_of(config: dict[str, Any]) -> dict[str, Any]:
    """The language model's part of a config."""
    text = config.get("text_config")
    return text if isinstance(text, dict) else config


def unreadable(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Contents that keep weights or code from being read, each with its remedy."""
    for name in ("quantization_config", "compression_config"):
        if config.get(name) is not None:
            settings = config[name]
            method = settings.get("quant_method") if isinstance(settings, dict) else settings
            yield f"{name} ({method})", "use the weights in bfloat16, float16 or float32"
    for name in ("auto_map", "per_layer_config", "transformers_weights"):
        if config.get(name):
            yield name, f"remove it from {CONFIG} if the model computes the same without it"
    for name in ("dtype", "torch_dtype"):
        dtype = config.get(name)
        if dtype is not None and dtype not in DTYPES:
            yield f"{name} = {dtype!r}", f"use a model whose {name} is one of {', '.join(DTYPES)}"
    first, second = config.get("dtype"), config.get("torch_dtype")
    if None not in (first, second) and first != second:
        yield f"dtype = {first!r} with torch_dtype = {second!r}", f"keep one of them in {CONFIG}"


def _untrained(text: dict[str, Any]) -> Iterator[tuple[str, str]]:
    layers = text.get("layer_types")
    for layer in layers if isinstance(layers, list) else ():
        if layer not in LAYERS:
            yield f"layer_types with {layer!r}", OTHER_MODEL
    if text.get("attention_chunk_size"):
        yield f"attention_chunk_size = {text['attention_chunk_size']!r}", OTHER_MODEL
    for kind in rope.kinds(text):
        if kind in _BY_LONGEST:
            yield (
                f"rope_type {kind!r} (its frequencies depend on the longest sequence of a batch)",
                "use a model whose rope_type is default, linear, llama3 or yarn",
            )


def estimated_sizes(config: dict[str, Any], named: str) -> dict[str, Any]:
    """The fields of `Sizes`, of any family: projections without biases, gated MLPs or experts in
    every layer. Raises ModelError for a field that is missing."""
    text = text_of(config)

    def size(*names: str, default: int | None = None) -> int:
        found = next((text[name] for name in names if text.get(name) is not None), default)
        if not isinstance(found, int) or not is_whole(found) or found < 0:
            raise ModelError(
                f"{named}: {CONFIG} has {names[0]} = {found!r}, expected a whole number, which a "
                "plan needs",
                remedy=f"restore the {CONFIG} that belongs to the weights",
            )
        return found

    hidden = size("hidden_size", "n_embd", "d_model")
    heads = size("num_attention_heads", "n_head", default=1)
    num_experts = size("num_experts", "num_local_experts", "n_routed_experts", default=0)
    inner = size("intermediate_size", "n_inner", "moe_intermediate_size", default=4 * hidden)
    longest = text.get("max_position_embeddings", text.get("n_positions"))
    return {
        "model_type": str(text.get("model_type", config.get("model_type"))),
        "hidden_size": hidden,
        "num_layers": size("num_hidden_layers", "n_layer"),
        "num_heads": heads,
        "num_kv_heads": size("num_key_value_heads", default=heads),
        "head_dim": size("head_dim", default=hidden // max(1, heads)),
        "intermediate_size": inner,
        "vocab_size": size("vocab_size"),
        "is_tied": bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        "max_context": longest if is_whole(longest) else None,
        "num_experts": num_experts,
        "experts_per_token": size("num_experts_per_tok", default=1) if num_experts else 0,
        "expert_intermediate_size": (
            size("moe_intermediate_size", default=inner) if num_experts else 0
        ),
    }
