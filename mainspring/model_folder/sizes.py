"""The sizes of a model's weights, as its config.json has them.

What a config leaves out is what transformers takes for the family. Imported by those that plan with
a model and by `tensors`, which compares them with the files. A config is read after `refusals`.
"""

from dataclasses import dataclass
from typing import Any

from mainspring.model_folder.families import DEFAULTS, EXPERTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    model_type: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    is_tied: bool
    """Whether the output layer uses the embedding's weight."""
    max_context: int | None = None
    """Longest sequence that the model was made for."""
    num_experts: int = 0
    """In each layer; 0 of a dense model."""
    experts_per_token: int = 0
    expert_intermediate_size: int = 0

    @property
    def has_qk_norm(self) -> bool:
        return self.model_type in ("qwen3", "qwen3_moe")

    @property
    def has_qkv_bias(self) -> bool:
        return self.model_type == "qwen2"


def sizes_of(config: dict[str, Any]) -> dict[str, Any]:
    """The fields of `Sizes`, of a config that `refusals.check_config` has taken."""
    family = config["model_type"]
    heads = config["num_attention_heads"]
    fields = DEFAULTS[family] | config
    has_experts = family in EXPERTS
    return {
        "model_type": family,
        "hidden_size": config["hidden_size"],
        "num_layers": config["num_hidden_layers"],
        "num_heads": heads,
        "num_kv_heads": fields["num_key_value_heads"] or heads,
        "head_dim": fields.get("head_dim") or config["hidden_size"] // heads,
        "intermediate_size": config["intermediate_size"],
        "vocab_size": config["vocab_size"],
        "is_tied": config.get("tie_word_embeddings", False),
        "max_context": fields["max_position_embeddings"],
        "num_experts": num_experts(config) if has_experts else 0,
        "experts_per_token": config["num_experts_per_tok"] if has_experts else 0,
        "expert_intermediate_size": config["moe_intermediate_size"] if has_experts else 0,
    }


def num_experts(config: dict[str, Any]) -> int | None:
    """transformers wrote one name, and writes the other one now."""
    number: int | None = config.get("num_experts", config.get("num_local_experts"))
    return number
