import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from mainspring.config.training.parallel import Device, ParallelConfig
from mainspring.errors import ModelError
from mainspring.model_folder.weights import SINGLE
from mainspring.planning.model_shape import read_shape
from tests.trainer.shards import hf_to_mcore, mcore_to_hf
from trainer.engines.plain import PlainEngine
from trainer.model import hf_directory
from trainer.model.convert import EMBEDDING, GATE_UP, QKV
from trainer.model.hf_directory import HfWriter, load_config, load_weights
from trainer.model.policy_model import build_model


def write(directory, weights, source):
    writer = HfWriter(directory, source)
    writer.begin()
    for name, weight in weights.items():
        writer.add({name: weight})
    writer.flush()
    writer.finish(writer.files)


def mcore_names(model, processes, *, te: bool) -> list[str]:
    built = build_model(model.config, ParallelConfig(device=Device.CPU), processes)
    names = [name for name, _ in built.named_parameters()]
    if not te:
        return names
    norms = {
        "input_layernorm.weight": f"{QKV}.layer_norm_weight",
        "pre_mlp_layernorm.weight": f"{GATE_UP}.layer_norm_weight",
    }
    for local, fused in norms.items():
        names = [name.replace(local, fused) for name in names]
    return names


@pytest.mark.parametrize("tp_size", [1, 2])
@pytest.mark.parametrize("te", [False, True])
@pytest.mark.parametrize(
    ("family", "tied"), [("qwen3", True), ("qwen2", False), ("llama", True), ("qwen3_moe", False)]
)
def test_round_trip_is_bit_exact(family, tied, te, tp_size, make_model, alone):
    if te and family == "qwen3_moe":
        pytest.skip("with experts Transformer Engine keeps the second norm apart")
    model, directory = make_model(family, tied=tied)
    weights = load_weights(directory)
    names = mcore_names(model, alone, te=te)
    shards = [
        hf_to_mcore(weights, model.config, names, tp_rank=r, tp_size=tp_size)
        for r in range(tp_size)
    ]
    assert len({shard[EMBEDDING].shape for shard in shards}) == 1
    back = mcore_to_hf(shards, model.config)
    assert back.keys() == weights.keys()
    assert all(torch.equal(back[name], weights[name]) for name in weights)


def test_missing_unknown_and_misshapen_weights_are_named(make_model, make_config, alone, tmp_path):
    _, directory = make_model("qwen3")
    weights = load_weights(directory)
    name = "model.layers.1.mlp.up_proj.weight"
    spoiled = {
        "missing": {each: weights[each] for each in weights if each != name},
        "no place": weights | {"model.extra": weights[name].clone()},
        "expected": weights | {name: weights[name][:, :-1]},
    }
    engine = PlainEngine(make_config(), directory, alone)
    before = engine.weights.named()["decoder.layers.1.mlp.linear_fc1.weight"].clone()
    for word, state in spoiled.items():
        folder = tmp_path / word
        folder.mkdir()
        save_file({each: value.contiguous() for each, value in state.items()}, folder / SINGLE)
        with pytest.raises(ModelError, match=word) as caught:
            engine.weights.load_hf(folder)
        assert ("model.extra" if word == "no place" else "layers.1.mlp") in caught.value.message
    assert torch.equal(engine.weights.named()["decoder.layers.1.mlp.linear_fc1.weight"], before)


def test_a_directory_that_lacks_a_shard_is_refused(make_model, tmp_path):
    model, _ = make_model("qwen3")
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    gone = sorted(tmp_path.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(ModelError, match=gone.name):
        load_weights(tmp_path)


def test_an_export_is_cut_into_files_that_transformers_reads(make_model, monkeypatch, tmp_path):
    model, source = make_model("qwen3")
    monkeypatch.setattr(hf_directory, "FILE_BYTES", 20_000)
    weights = load_weights(source)
    write(tmp_path / "out", weights, source)
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 3
    read = type(model).from_pretrained(tmp_path / "out").state_dict()
    assert all(torch.equal(read[name], weights[name]) for name in weights)


def test_export_keeps_files_and_dtype(make_model, tmp_path):
    _, source = make_model("qwen3")
    weights = load_weights(source)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    write(tmp_path / "out", weights, source)
    for name in ("config.json", "tokenizer.json"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    assert load_config(tmp_path / "out").dtype is torch.bfloat16
    saved = load_weights(tmp_path / "out")
    assert all(torch.equal(saved[name], weights[name].bfloat16().float()) for name in weights)
    # Engines run as somebody else: in a container, on another host.
    modes = {file.name: oct(file.stat().st_mode) for file in (tmp_path / "out").iterdir()}
    assert modes["model.safetensors"] == modes["config.json"], modes


def test_weights_without_a_dtype_in_the_config_keep_their_own(make_model, tmp_path):
    _, source = make_model("qwen3", tied=False)
    config = json.loads((source / "config.json").read_text())
    for name in ("dtype", "torch_dtype"):
        config.pop(name, None)
    (source / "config.json").write_text(json.dumps(config))
    weights = load_weights(source)
    half = {name: weight.bfloat16() for name, weight in weights.items()}
    for stored, dtype, size in (
        (half, torch.bfloat16, 2),
        (weights, torch.float32, 4),
        (half | {"model.norm.weight": weights["model.norm.weight"]}, torch.float32, 4),
    ):
        save_file(stored, source / SINGLE)
        out = tmp_path / f"{dtype}-{len({each.dtype for each in stored.values()})}"
        write(out, weights, source)
        with safe_open(out / SINGLE, framework="pt") as file:
            assert {file.get_tensor(name).dtype for name in weights} == {dtype}
        assert read_shape(source).file_bytes_per_weight == size


def test_directories_that_are_no_models_are_refused(make_model, tmp_path):
    with pytest.raises(ModelError, match="config"):
        load_config(tmp_path)
    with pytest.raises(ModelError, match="safetensors"):
        load_weights(tmp_path)
    _, source = make_model("qwen3")
    (tmp_path / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes()[:99])
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        load_weights(tmp_path)
