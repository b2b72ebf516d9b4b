import json

import pytest
import torch

from mainspring.errors import ModelError
from trainer.convert import EMBEDDING, hf_to_mcore, mcore_to_hf
from trainer.hf_directory import load_config, load_weights, save_model


@pytest.mark.parametrize("tp_size", [1, 2])
@pytest.mark.parametrize("te", [False, True])
@pytest.mark.parametrize(("family", "tied"), [("qwen3", True), ("qwen2", False), ("llama", True)])
def test_round_trip_is_bit_exact(family, tied, te, tp_size, make_model):
    model, directory = make_model(family, tied=tied)
    weights = load_weights(directory)
    shards = [
        hf_to_mcore(weights, model.config, tp_rank=r, tp_size=tp_size, transformer_engine=te)
        for r in range(tp_size)
    ]
    assert len({shard[EMBEDDING].shape for shard in shards}) == 1
    back = mcore_to_hf(shards, model.config)
    assert back.keys() == weights.keys()
    assert all(torch.equal(back[name], weights[name]) for name in weights)


def test_missing_and_unknown_weights_are_named(make_model):
    model, directory = make_model("qwen3")
    weights = load_weights(directory)
    removed = weights.pop("model.layers.1.mlp.up_proj.weight")
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.up_proj"):
        hf_to_mcore(weights, model.config)
    weights |= {"model.layers.1.mlp.up_proj.weight": removed, "model.extra": removed}
    with pytest.raises(ModelError, match=r"model\.extra"):
        hf_to_mcore(weights, model.config)


def test_export_keeps_files_and_dtype(make_model, tmp_path):
    _, source = make_model("qwen3")
    weights = load_weights(source)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    save_model(tmp_path / "out", weights, source)
    for name in ("config.json", "tokenizer.json"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    assert load_config(tmp_path / "out").dtype is torch.bfloat16
    saved = load_weights(tmp_path / "out")
    assert all(torch.equal(saved[name], weights[name].bfloat16().float()) for name in weights)
    # Engines run as somebody else: in a container, on another host.
    modes = {file.name: oct(file.stat().st_mode) for file in (tmp_path / "out").iterdir()}
    assert modes["model.safetensors"] == modes["config.json"], modes


def test_directories_that_are_no_models_are_refused(make_model, tmp_path):
    with pytest.raises(ModelError, match="config"):
        load_config(tmp_path)
    with pytest.raises(ModelError, match="safetensors"):
        load_weights(tmp_path)
    _, source = make_model("qwen3")
    (tmp_path / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes()[:99])
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        load_weights(tmp_path)
