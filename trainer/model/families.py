"""The sizes that the trainer derives from a model's config, and how they are split over ranks.

Which models can be trained is decided in `mainspring.model_folder`, before a config is loaded.
Imports no Megatron.
"""

from transformers import PretrainedConfig

from mainspring.config.training.parallel import ParallelConfig
from mainspring.errors import ModelError


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


def check_divides(hf: PretrainedConfig, parallel: ParallelConfig) -> None:
    """Raises ModelError naming what cannot be split."""
    where = f"model {hf.name_or_path or hf.model_type!r}"
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
        size_there = num_experts(hf) if field == "num_experts" else getattr(hf, field)
        if (field == "num_experts" and value > 1 and not size_there) or size_there % value:
            raise ModelError(
                f"{where}: {field} = {size_there} cannot be split over {size} = {value}",
                remedy=f"set trainer.{size} to a divisor",
            )
