"""The families that the trainer trains, and the fields of their config.json.

Owns, for each `model_type`, its class in transformers, what each field may be, and what
transformers takes where the field is left out. Invariant: a value that transformers refuses is
refused here; a test compares the table with transformers' own.
Imported by `refusals` and `sizes`.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

ARCHITECTURES = {
    "qwen3": "Qwen3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "llama": "LlamaForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
"""By the values of `model_type` whose weights the trainer can name."""
FAMILIES = tuple(ARCHITECTURES)
EXPERTS = ("qwen3_moe",)
LARGEST = 2**31 - 1
"""Largest size: what no model has would only overflow later."""


@dataclass(frozen=True, slots=True)
class Kind:
    expected: str
    takes: Callable[[Any], bool]

    def or_null(self) -> "Kind":
        return Kind(f"{self.expected}, or null", lambda value: value is None or self.takes(value))


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


WHOLE = Kind("a whole number above 0", lambda value: is_whole(value) and 0 < value <= LARGEST)
COUNT = Kind("a whole number, 0 or above", lambda value: is_whole(value) and 0 <= value <= LARGEST)
INTEGER = Kind("a whole number", lambda value: is_whole(value) and abs(value) <= LARGEST)
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
TEXT = Kind("a text", lambda value: isinstance(value, str))
NUMBER = Kind("a number", is_number)
EPSILON = Kind(
    "a decimal number above 0", lambda value: isinstance(value, float) and 0 < value < math.inf
)
SPREAD = Kind(
    "a decimal number from 0.0 to 1.0", lambda value: isinstance(value, float) and 0 <= value <= 1
)
TABLE = Kind("an object", lambda value: isinstance(value, dict))
TEXTS = Kind(
    "a list of texts",
    lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
)
NUMBERS = Kind(
    "a list of whole numbers",
    lambda value: isinstance(value, list) and all(is_whole(item) for item in value),
)
IDS = Kind(
    "a token id or a list of them",
    lambda value: INTEGER.takes(value) or (NUMBERS.takes(value) and bool(value)),
)
_PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")

_EVERY: dict[str, Kind] = {
    "architectures": TEXTS.or_null(),
    "transformers_version": TEXT.or_null(),
    "output_hidden_states": FLAG.or_null(),
    "return_dict": FLAG.or_null(),
    "chunk_size_feed_forward": INTEGER,
    "is_encoder_decoder": FLAG,
    "id2label": Kind(
        "an object with numbers for keys",
        lambda value: isinstance(value, dict) and all(key.isdigit() for key in value),
    ).or_null(),
    "label2id": TABLE.or_null(),
    "problem_type": Kind(
        f"one of {', '.join(_PROBLEM_TYPES)}", lambda value: value in _PROBLEM_TYPES
    ).or_null(),
    "vocab_size": WHOLE,
    "hidden_size": WHOLE,
    "intermediate_size": WHOLE,
    "num_hidden_layers": WHOLE,
    "num_attention_heads": WHOLE,
    "num_key_value_heads": WHOLE.or_null(),
    "max_position_embeddings": WHOLE,
    "hidden_act": TEXT,
    "initializer_range": SPREAD,
    "rms_norm_eps": EPSILON,
    "use_cache": FLAG,
    "tie_word_embeddings": FLAG,
    "attention_bias": FLAG,
    "mlp_bias": FLAG,
    "attention_dropout": NUMBER,
    "layer_types": TEXTS.or_null(),
    "rope_parameters": TABLE.or_null(),
    "rope_scaling": TABLE.or_null(),
    "pad_token_id": INTEGER.or_null(),
    "bos_token_id": INTEGER.or_null(),
    "eos_token_id": IDS.or_null(),
}
_QWEN: dict[str, Kind] = {
    "use_sliding_window": FLAG,
    "sliding_window": INTEGER.or_null(),
    "head_dim": WHOLE,
}
_OWN: dict[str, dict[str, Kind]] = {
    "qwen2": _QWEN | {"max_window_layers": INTEGER},
    "qwen3": _QWEN | {"max_window_layers": INTEGER},
    "qwen3_moe": {
        **_QWEN,
        "num_key_value_heads": WHOLE,
        "num_experts": WHOLE,
        "num_local_experts": WHOLE,
        "num_experts_per_tok": WHOLE,
        "moe_intermediate_size": WHOLE,
        "norm_topk_prob": FLAG,
        "decoder_sparse_step": INTEGER,
        "mlp_only_layers": NUMBERS.or_null(),
        "output_router_logits": FLAG,
        "router_aux_loss_coef": Kind("a decimal number", lambda value: isinstance(value, float)),
    },
    "llama": {
        "head_dim": WHOLE.or_null(),
        "attention_dropout": NUMBER.or_null(),
        "pretraining_tp": INTEGER.or_null(),
        "use_sliding_window": FLAG.or_null(),
    },
}
_REQUIRED = (
    *("vocab_size", "hidden_size", "intermediate_size"),
    *("num_hidden_layers", "num_attention_heads"),
)
"""transformers would take its own numbers for them: a config without them describes nothing."""
_REQUIRED_OF_EXPERTS = ("num_experts_per_tok", "moe_intermediate_size")
DEFAULTS: dict[str, dict[str, int | None]] = {
    "qwen2": {"num_key_value_heads": 32, "max_position_embeddings": 32768},
    "qwen3": {"num_key_value_heads": 32, "max_position_embeddings": 32768, "head_dim": 128},
    "qwen3_moe": {"num_key_value_heads": 4, "max_position_embeddings": 32768},
    "llama": {"num_key_value_heads": None, "max_position_embeddings": 2048},
}
"""Values that transformers takes where a field is left out. None: as many as there are heads."""


@dataclass(frozen=True, slots=True)
class WrongField:
    name: str
    value: Any
    expected: str


def wrong_fields(config: dict[str, Any]) -> Iterator[WrongField]:
    """Wrong fields of a config.json whose `model_type` is in FAMILIES."""
    family = config["model_type"]
    required = _REQUIRED + (_REQUIRED_OF_EXPERTS if family in EXPERTS else ())
    kinds = _EVERY | _OWN[family]
    for name in required:
        if name not in config:
            yield WrongField(name, None, kinds[name].expected)
    for name, kind in kinds.items():
        if name in config and not kind.takes(config[name]):
            yield WrongField(name, config[name], kind.expected)
