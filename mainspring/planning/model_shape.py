"""The shape of a model, read from a Hugging Face config.json without transformers.

Owns the counts of its parameters. Invariant: what the trainer cannot train is refused here by its
name in config.json, so that it is known before a GPU is asked for.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mainspring.errors import ModelError

DENSE = ("qwen3", "qwen2", "llama")
EXPERTS = ("qwen3_moe",)
FAMILIES = DENSE + EXPERTS
"""Values of `model_type` that can be planned."""
CONFIG = "config.json"
REMEDY = "expected a Hugging Face model directory; to plan, its config.json suffices"
_HALF = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class ModelShape:
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
    file_bytes_per_weight: int
    """Of the dtype that config.json names; exports have it too."""
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

    @property
    def q_width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Of the keys alone, or of the values alone."""
        return self.num_kv_heads * self.head_dim

    @property
    def attention_parameters(self) -> int:
        """Matrices and biases of one layer's attention: what tensor parallelism shares."""
        qkv_rows = self.q_width + 2 * self.kv_width
        biases = qkv_rows if self.has_qkv_bias else 0
        return self.hidden_size * (qkv_rows + self.q_width) + biases

    @property
    def norm_parameters(self) -> int:
        """Norms of one layer, and the router of its experts: what every rank has."""
        qk_norms = 2 * self.head_dim if self.has_qk_norm else 0
        return 2 * self.hidden_size + qk_norms + self.hidden_size * self.num_experts

    @property
    def mlp_parameters(self) -> int:
        """The dense MLP of one layer."""
        return 0 if self.num_experts else 3 * self.hidden_size * self.intermediate_size

    @property
    def expert_parameters(self) -> int:
        """One expert of one layer."""
        return 3 * self.hidden_size * self.expert_intermediate_size

    @property
    def layer_parameters(self) -> int:
        dense = self.attention_parameters + self.norm_parameters + self.mlp_parameters
        return dense + self.num_experts * self.expert_parameters

    @property
    def embedding_parameters(self) -> int:
        """Of the embedding alone, or of the output layer alone."""
        return self.vocab_size * self.hidden_size

    @property
    def num_parameters(self) -> int:
        embeddings = self.embedding_parameters * (1 if self.is_tied else 2)
        return self.num_layers * self.layer_parameters + embeddings + self.hidden_size

    @property
    def num_active_parameters(self) -> int:
        """Those of the layers that one token is multiplied with."""
        unused = (self.num_experts - self.experts_per_token) * self.expert_parameters
        return self.num_layers * (self.layer_parameters - unused)

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers, in the dtype of the files."""
        return 2 * self.num_layers * self.kv_width * self.file_bytes_per_weight


def read_shape(directory: Path) -> ModelShape:
    """Raises ModelError without a config.json of a model that can be trained."""
    where = f"model directory {directory}"
    if not directory.is_dir():
        raise ModelError(f"{where}: no such directory", remedy=REMEDY)
    try:
        config = json.loads((directory / CONFIG).read_text())
    except FileNotFoundError:
        raise ModelError(f"{where}: no {CONFIG}", remedy=REMEDY) from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{where}: {CONFIG} cannot be read: {error}", remedy=REMEDY) from None
    if not isinstance(config, dict):
        raise ModelError(f"{where}: {CONFIG} is no JSON object", remedy=REMEDY)
    return shape_of(config, where)


def shape_of(config: dict[str, Any], where: str) -> ModelShape:
    """From the content of a config.json. Raises ModelError naming the field."""
    _refuse_unsupported(config, where)

    def whole(name: str) -> int:
        value = config.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelError(
                f"{where}: {CONFIG} has {name} = {value!r}, expected a whole number above 0",
                remedy=f"restore the {CONFIG} that belongs to the weights",
            )
        return value

    hidden, heads = whole("hidden_size"), whole("num_attention_heads")
    has_experts = config["model_type"] in EXPERTS
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    return ModelShape(
        model_type=config["model_type"],
        hidden_size=hidden,
        num_layers=whole("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=whole("num_key_value_heads") if "num_key_value_heads" in config else heads,
        head_dim=whole("head_dim") if config.get("head_dim") else hidden // heads,
        intermediate_size=whole("intermediate_size"),
        vocab_size=whole("vocab_size"),
        is_tied=bool(config.get("tie_word_embeddings", False)),
        file_bytes_per_weight=2 if dtype.removeprefix("torch.") in _HALF else 4,
        max_context=config.get("max_position_embeddings"),
        num_experts=whole("num_experts") if has_experts else 0,
        experts_per_token=whole("num_experts_per_tok") if has_experts else 0,
        expert_intermediate_size=whole("moe_intermediate_size") if has_experts else 0,
    )


def _refuse_unsupported(config: dict[str, Any], where: str) -> None:
    kind = config.get("model_type")
    if kind not in FAMILIES:
        named = ", ".join(config.get("architectures") or ())
        raise ModelError(
            f"{where}: model_type {kind!r}{f' ({named})' if named else ''} cannot be trained",
            remedy=f"use a model of {', '.join(FAMILIES)}",
        )
    for field, fits in (
        ("attention_bias", kind == "qwen2" or not config.get("attention_bias")),
        ("mlp_bias", not config.get("mlp_bias")),
        ("use_sliding_window", not config.get("use_sliding_window")),
        ("hidden_act", config.get("hidden_act", "silu") == "silu"),
        ("mlp_only_layers", kind not in EXPERTS or not config.get("mlp_only_layers")),
        ("decoder_sparse_step", kind not in EXPERTS or config.get("decoder_sparse_step", 1) == 1),
    ):
        if not fits:
            raise ModelError(
                f"{where}: {field} = {config[field]!r} cannot be trained",
                remedy=f"use a model of {', '.join(FAMILIES)} without it",
            )
