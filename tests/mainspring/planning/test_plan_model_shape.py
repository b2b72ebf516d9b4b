"""Shapes of published models, and models that are refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from mainspring.errors import ModelError
from mainspring.planning.known_models import MODELS
from mainspring.planning.model_shape import read_shape, shape_of


@pytest.mark.parametrize(
    ("model", "num_parameters"),
    [
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-32b", 32_762_123_264),
        ("qwen3-30b-a3b", 30_532_122_624),
    ],
)
def test_parameters_are_those_that_the_makers_publish(model: str, num_parameters: int) -> None:
    assert read_shape(MODELS / model).num_parameters == num_parameters


def test_a_layer_of_experts_multiplies_few_of_them() -> None:
    shape = read_shape(MODELS / "qwen3-30b-a3b")
    # Attention 18,874,368, norms 4,352, router 262,144 and 8 of 128 experts of 4,718,592.
    assert shape.num_active_parameters == 48 * (18_874_368 + 4_352 + 262_144 + 8 * 4_718_592)


def test_keys_and_values_of_a_token() -> None:
    # 36 layers, 8 heads of 128, keys and values, two bytes each.
    assert read_shape(MODELS / "qwen3-8b").kv_bytes_per_token == 147_456


def test_what_a_config_leaves_out_has_transformers_defaults() -> None:
    shape = shape_of(_config(model_type="llama", head_dim=None, num_key_value_heads=4), "x")
    assert (shape.head_dim, shape.num_kv_heads) == (16, 4)
    without = _config(model_type="llama")
    del without["num_key_value_heads"]
    assert shape_of(without, "x").num_kv_heads == 4
    assert shape_of(_config(), "x").file_bytes_per_weight == 4
    assert shape_of(_config(torch_dtype="bfloat16"), "x").file_bytes_per_weight == 2


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "gemma3"}, "model_type 'gemma3' (Gemma3ForCausalLM) cannot be trained"),
        ({"model_type": None}, "names no model_type"),
        ({"attention_bias": True}, "attention_bias = True cannot be trained"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu' cannot be trained"),
        ({"use_sliding_window": True}, "use_sliding_window = True cannot be trained"),
        ({"hidden_size": None}, "hidden_size = None, expected a whole number above 0"),
        ({"vocab_size": "many"}, "vocab_size = 'many', expected"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused(changed: dict[str, Any], message: str) -> None:
    named = {"architectures": ["Gemma3ForCausalLM"]} if "model_type" in changed else {}
    with pytest.raises(ModelError) as refused:
        shape_of(_config(**changed, **named), "model directory /m")
    assert message in refused.value.message
    assert "/m" in refused.value.message and refused.value.remedy


def test_a_directory_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such directory"):
        read_shape(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"no config\.json"):
        read_shape(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        read_shape(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps([]))
    with pytest.raises(ModelError, match="expected a JSON object"):
        read_shape(tmp_path)


def _config(**changed: Any) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 256,
    } | changed
