"""The table of fields against transformers' own classes: what they refuse, it refuses."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from mainspring.errors import ModelError
from mainspring.model_folder.families import ARCHITECTURES, DEFAULTS, FAMILIES, wrong_fields
from mainspring.model_folder.folder import export_dtype
from mainspring.model_folder.refusals import FolderUse, check_config

VALUES: tuple[Any, ...] = (None, True, 0, 1, -1, 3, 0.5, 2.0, "", "x", [], [1], ["x"], {}, {"x": 1})


def config_of(family: str, **fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "model_type": family,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": 64,
    }
    if family == "qwen3_moe":
        found |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    return found | fields


def is_taken(config: dict[str, Any], use: FolderUse) -> bool:
    try:
        check_config(config, "model directory /m", use)
    except ModelError:
        return False
    return True


@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_refuses_is_refused_first(family: str, tmp_path: Path) -> None:
    whole = config_of(family)
    assert is_taken(whole, FolderUse.TRAINED)
    own = type(AutoConfig.for_model(family))
    names = {field.name for field in dataclasses.fields(own)}
    names |= {
        "rope_theta",
        "rope_scaling",
        "num_local_experts",
        "torch_dtype",
        "partial_rotary_factor",
    }
    file = tmp_path / "config.json"
    missed = []
    for name in sorted(names):
        for value in VALUES:
            changed = whole | {name: value}
            if name == "num_local_experts":
                changed.pop("num_experts", None)
            if not is_taken(changed, FolderUse.SERVED):
                continue
            file.write_text(json.dumps(changed))
            try:
                AutoConfig.from_pretrained(tmp_path, local_files_only=True)
            except Exception as error:
                missed.append(f"{name} = {value!r}: {error}"[:200])
    assert not missed, "\n".join(missed)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_left_out_is_what_transformers_takes(family: str) -> None:
    fields = {
        field.name: field.default
        for field in dataclasses.fields(type(AutoConfig.for_model(family)))
    }
    assert DEFAULTS[family] == {name: fields[name] for name in DEFAULTS[family]}
    assert ("head_dim" in DEFAULTS[family]) == isinstance(fields.get("head_dim"), int)
    assert fields["tie_word_embeddings"] is False
    assert ARCHITECTURES[family].removesuffix("ForCausalLM").lower() == family.replace("_", "")


def test_values_of_other_kinds_raise_nothing_else(tmp_path: Path) -> None:
    """Whatever a field holds, the answer is one sentence, for each use."""
    for family in (*FAMILIES, "gemma3", "", 3, None, ["qwen3"], {}):
        for name in (
            *config_of("qwen3_moe"),
            "rope_parameters",
            "rope_scaling",
            "rope_theta",
            "text_config",
            "layer_types",
            "architectures",
            "dtype",
            "eos_token_id",
            "quantization_config",
            "auto_map",
            "use_sliding_window",
            "partial_rotary_factor",
        ):
            for value in (
                *VALUES,
                float("nan"),
                10**40,
                {"full_attention": {}},
                [[]],
                [{}],
                {"type": []},
                {"rope_type": {}},
                {"factor": None, "type": "llama3"},
                {"rope_theta": []},
            ):
                changed = config_of("qwen3_moe") | {"model_type": family, name: value}
                for use in FolderUse:
                    is_taken(changed, use)


def test_every_field_that_is_required_is_named() -> None:
    assert [each.name for each in wrong_fields({"model_type": "qwen3"})] == [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
    ]


def test_experts_have_either_name() -> None:
    config = config_of("qwen3_moe")
    old = {"num_local_experts": config.pop("num_experts")}
    assert not is_taken(config, FolderUse.READ)
    assert is_taken(config | old, FolderUse.TRAINED)
    assert is_taken(config | old | {"num_experts": 4}, FolderUse.TRAINED)
    assert not is_taken(config | old | {"num_experts": 8}, FolderUse.READ)
    assert not is_taken(config | {"num_experts": 1}, FolderUse.READ)


def test_an_export_has_the_configs_dtype(tmp_path: Path) -> None:
    assert export_dtype(tmp_path, {"torch_dtype": "bfloat16"}) == "bfloat16"
    assert export_dtype(tmp_path, {"dtype": "float16", "torch_dtype": "bfloat16"}) == "float16"
    assert export_dtype(tmp_path, {}) == "float32"
