"""Folders that the fsdp engine takes, and those that it refuses before it trains anything."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from infra.policy.model.model_files import check_model_directory
from mainspring.errors import ModelError
from mainspring.model_folder.folder import check_folder
from mainspring.model_folder.refusals import FolderUse
from tests.trainer.any_models import VOCAB_SIZE, samples_of, save_model
from trainer.model.hf_directory import load_weights
from trainer.process.rank import TrainerRank

UP = "model.layers.0.mlp.up_proj.weight"


def _edit(directory: Path, **fields: Any) -> None:
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def _change(directory: Path, **changed: Any) -> None:
    """Weights by their last names: another tensor, or None for no such weight."""
    file = directory / "model.safetensors"
    weights = load_file(file)
    for name, weight in changed.items():
        weights.pop(name, None)
        if weight is not None:
            weights[name] = weight
    save_file(weights, file, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"auto_map": {"AutoModelForCausalLM": "own.Own"}}, "auto_map cannot be trained"),
        (
            {"quantization_config": {"quant_method": "fp8"}},
            r"quantization_config \(fp8\) cannot be trained",
        ),
        ({"dtype": "int8"}, "dtype = 'int8' cannot be trained"),
        ({"layer_types": ["full_attention", "of_their_own"]}, "layer_types with 'of_their_own'"),
        ({"layer_types": ["chunked_attention"] * 2}, "layer_types with 'chunked_attention'"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
            "rope_type 'dynamic' .its frequencies depend on the longest sequence",
        ),
        ({"rope_scaling": {"type": "longrope"}}, "rope_type 'longrope'"),
        ({"is_encoder_decoder": True}, "a model with an encoder"),
        ({"architectures": ["BertForMaskedLM"]}, "BertForMaskedLM generates no text"),
        ({"vocab_size": 5}, "tokenizer.json has the token id 7, config.json has vocab_size = 5"),
    ],
)
def test_a_config_is_refused_before_weights_are_read(fields, told, tmp_path) -> None:
    save_model("mistral", tmp_path)
    tokens = {"model": {"vocab": {"a": 7}}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokens))
    _edit(tmp_path, **fields)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=told):
        check_folder(tmp_path, FolderUse.ANY_MODEL, needs_weights=False)


def test_an_unknown_type_is_refused_by_the_rank(make_config, tmp_path) -> None:
    save_model("mistral", tmp_path)
    _edit(tmp_path, model_type="of_their_own", architectures=["OwnForCausalLM"])
    with pytest.raises(ModelError, match=r"its config cannot be read: .*of_their_own"):
        TrainerRank(make_config(engine="fsdp"), tmp_path)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({UP: None}, f"no weight of the files makes {UP}"),
        ({UP: torch.ones(47, 32)}, rf"weight {UP} has the shape \[47, 32\], expected \[48, 32\]"),
        ({UP: torch.ones(48, 32, dtype=torch.int8)}, f"{UP} is stored as I8"),
        ({"lm_head.weight": None}, "no weight of the files makes lm_head.weight"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(changed, told, make_config, tmp_path) -> None:
    save_model("mistral", tmp_path)
    _change(tmp_path, **changed)
    with pytest.raises(ModelError, match=told):
        TrainerRank(make_config(engine="fsdp"), tmp_path)


def test_an_expert_that_is_missing_is_refused(make_config, tmp_path) -> None:
    save_model("qwen3_moe", tmp_path)
    _change(tmp_path, **{"model.layers.1.mlp.experts.3.down_proj.weight": None})
    with pytest.raises(ModelError, match=r"mlp\.experts\.(3\.)?down_proj"):
        TrainerRank(make_config(engine="fsdp"), tmp_path)


def test_a_second_copy_of_a_tied_weight_is_exported_or_refused(make_config, tmp_path) -> None:
    save_model("qwen2", tmp_path)
    embedding = load_weights(tmp_path)["model.embed_tokens.weight"]
    _change(tmp_path, **{"lm_head.weight": embedding.clone()})
    rank = TrainerRank(make_config(engine="fsdp"), tmp_path)
    rank.train_step(samples_of(9, 30), step=0, current_version=0)
    rank.export_hf(tmp_path / "out")
    found = load_weights(tmp_path / "out")
    assert found.keys() == load_weights(tmp_path).keys()
    assert torch.equal(found["lm_head.weight"], found["model.embed_tokens.weight"])
    assert not torch.equal(found["lm_head.weight"], embedding)
    _change(tmp_path, **{"lm_head.weight": embedding + 1})
    with pytest.raises(ModelError, match=r"lm_head\.weight is not model\.embed_tokens\.weight"):
        TrainerRank(make_config(engine="fsdp"), tmp_path)


def test_what_the_language_model_does_not_take_is_carried_through(
    make_config, oracle, tmp_path
) -> None:
    """A composite folder: vision, language, and a part for the prediction of several tokens."""
    save_model("qwen3_5_text", tmp_path / "text")
    text = json.loads((tmp_path / "text" / "config.json").read_text())
    vision = {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_heads": 2,
        "out_hidden_size": 32,
    }
    config = AutoConfig.for_model("qwen3_5", text_config=text, vision_config=vision)
    torch.manual_seed(1)
    whole = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    source = tmp_path / "whole"
    whole.save_pretrained(source)
    extra = torch.randn(3, 5).to(torch.bfloat16)
    _change(source, **{"mtp.fc.weight": extra})
    (source / "tokenizer.json").write_text("{}")
    rank = TrainerRank(make_config(engine="fsdp"), source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    samples = samples_of(9, 30)
    found = rank.logprobs(samples)
    for n, sample in enumerate(samples):
        mask = sample.action_mask
        expected = oracle(model, sample).detach().numpy()[mask[1:]]
        assert abs(found[n][mask] - expected).max() < 1e-5
    rank.train_step(samples, step=0, current_version=0)
    rank.export_hf(tmp_path / "out")
    before, after = (load_file(d / "model.safetensors") for d in (source, tmp_path / "out"))
    assert after.keys() == before.keys()
    moved = {name for name, weight in after.items() if not torch.equal(weight, before[name])}
    assert moved == {n for n in before if "language_model" in n or n == "lm_head.weight"}
    assert any("visual" in name for name in before)
    assert after["mtp.fc.weight"].dtype is torch.bfloat16
    _, info = AutoModelForImageTextToText.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not info["missing_keys"]


def test_a_checklist_takes_a_folder_for_this_engine_alone(tmp_path) -> None:
    save_model("mistral", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    check_model_directory(tmp_path, FolderUse.ANY_MODEL)
    with pytest.raises(ModelError, match="model_type 'mistral'"):
        check_model_directory(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["vocab_size"] == VOCAB_SIZE
