"""Which models can be trained, and the sizes that everything else derives from their config.

Invariant: what is not refused here gives the same logits as Hugging Face. Imports no Megatron.
"""

from transformers import PretrainedConfig

from mainspring.config.parallel import ParallelConfig
from mainspring.errors import ModelError

FAMILIES = ("qwen3", "qwen2", "llama", "qwen3_moe")
"""Values of `model_type` whose weights `trainer.convert` can name."""


def head_dim(hf: PretrainedConfig) -> int:
    return getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads


def has_qk_norm(hf: PretrainedConfig) -> bool:
    return hf.model_type in ("qwen3", "qwen3_moe")


def has_qkv_bias(hf: PretrainedConfig) -> bool:
    return hf.model_type == "qwen2"


def num_experts(hf: PretrainedConfig) -> int:
    """In each layer; 0 of a dense model."""
    return hf.num_experts if hf.model_type == "qwen3_moe" else 0


def padded_vocab_size(hf: PretrainedConfig, tp_size: int) -> int:
    """Rows of the embedding over all ranks: the vocabulary rounded up to the shards."""
    return -(-hf.vocab_size // tp_size) * tp_size


def check_supported(hf: PretrainedConfig, parallel: ParallelConfig) -> None:
    """Raises ModelError naming what about the model cannot be trained."""
    where = f"model {hf.name_or_path or hf.model_type!r}"
    if hf.model_type not in FAMILIES:
        raise ModelError(
            f"{where}: model_type {hf.model_type!r} cannot be trained",
            remedy=f"use a model of {', '.join(FAMILIES)}",
        )
    if not has_qkv_bias(hf) and getattr(hf, "attention_bias", False):
        raise ModelError(f"{where}: attention_bias = true cannot be trained")
    if getattr(hf, "mlp_bias", False):
        raise ModelError(f"{where}: mlp_bias = true cannot be trained")
    if getattr(hf, "use_sliding_window", False):
        raise ModelError(f"{where}: use_sliding_window = true cannot be trained")
    if hf.hidden_act != "silu":
        raise ModelError(f"{where}: hidden_act is {hf.hidden_act!r}, expected 'silu'")
    if num_experts(hf) and (hf.mlp_only_layers or hf.decoder_sparse_step != 1):
        raise ModelError(f"{where}: dense layers between layers of experts cannot be trained")
    for size, fields in (
        ("tensor_parallel", ("num_attention_heads", "num_key_value_heads", "intermediate_size")),
        ("pipeline_parallel", ("num_hidden_layers",)),
        ("expert_parallel", ("num_experts",)),
    ):
        _check_divides(where, hf, size, fields, getattr(parallel, size))


def _check_divides(
    where: str, hf: PretrainedConfig, size: str, fields: tuple[str, ...], value: int
) -> None:
    for field in fields:
        found = num_experts(hf) if field == "num_experts" else getattr(hf, field)
        if (field == "num_experts" and value > 1 and not found) or found % value:
            raise ModelError(
                f"{where}: {field} = {found} cannot be split over {size} = {value}",
                remedy=f"set trainer.{size} to a divisor",
            )
