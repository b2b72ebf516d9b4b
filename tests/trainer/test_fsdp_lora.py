"""Adapters on the fsdp engine, beside autograd, PEFT, the CPU engine and the engine `plain`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.checkpoint import FileSystemReader
from torch.nn.utils import parametrize
from transformers import AutoConfig, AutoModelForCausalLM

from engine.model.adapters import Adapters
from mainspring.config.training.lora import LoraConfig
from mainspring.errors import ModelError
from tests.trainer import fsdp_jobs
from tests.trainer.any_models import samples_of, save_model
from tests.trainer.conftest import largest_gap, oracle_logprobs, weights_of
from tests.trainer.ranks import run
from tests.trainer.test_fsdp_ranks import _checkpoints
from trainer.engines.fsdp.adapters import CHILD, check_targets, targets
from trainer.model.hf_directory import load_weights
from trainer.process.rank import TrainerRank

LR = 5e-3
LORA = {"rank": 4, "alpha": 8.0}
OF_ATTENTION = LORA | {"targets": "attention"}
SCALE = 2.0
OPTIONS = {"engine": "fsdp", "micro_batch_tokens": 64}
DENSE = {"qwen3": 28, "llama": 28, "qwen3_5_text": 30, "phi3": 16, "phi": 24}
"""Families, with the number of matrices A and B in two layers."""
EXPERTS = {"gpt_oss": 16, "qwen3_moe": 16}


class _Sum(nn.Module):
    """W + scale * B A, as one reads it in the paper."""

    def __init__(self, a: Tensor, b: Tensor) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(a.clone()), nn.Parameter(b.clone())

    def forward(self, weight: Tensor) -> Tensor:
        return weight + SCALE * self.b @ self.a


def _by_hand(directory: Path, parts: dict[str, Tensor]) -> Any:
    """The model of a folder with these adapters, by autograd alone."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    model.requires_grad_(False)
    for name in [name for name in parts if name.endswith(".a")]:
        module = model.get_submodule(name.removesuffix(f".{CHILD}.a"))
        pair = _Sum(parts[name], parts[f"{name[:-1]}b"])
        parametrize.register_parametrization(module, "weight", pair)
    return model


def _part_of(model: Any, name: str) -> nn.Parameter:
    module, _, part = name.partition(f".{CHILD}.")
    return model.get_parameter(f"{module}.parametrizations.weight.0.{part}")


def _compare(tmp_path, make_config, oracle_step, kinds, num_ranks: int, **options) -> None:
    """Ranks against autograd in one process, for each kind."""
    samples = samples_of(9, 30, num=7)
    directories = {kind: tmp_path / kind for kind in kinds}
    for kind in kinds:
        save_model(kind, directories[kind])
    config = make_config(**OPTIONS, data_parallel=num_ranks, **options)
    found = run(num_ranks, fsdp_jobs.adapted_steps, config, directories, samples)
    for kind, directory in directories.items():
        parts = found[0][kind]["parts"]
        assert len(parts) == kinds[kind], sorted(parts)
        model = _by_hand(directory, parts)
        kept = [s for s in samples if s.carries_advantage]
        still = torch.optim.SGD([_part_of(model, name) for name in parts], lr=0.0)
        loss = oracle_step(model, kept, still)
        for rank in found:
            assert rank[kind]["loss"] == pytest.approx(loss, abs=1e-5), kind
            for name, grad in rank[kind]["grads"].items():
                assert float((grad - _part_of(model, name).grad).abs().max()) < 1e-5, (kind, name)
        trained = [_part_of(model, name) for name in parts]
        adamw = torch.optim.AdamW(trained, lr=LR, betas=(0.9, 0.95), weight_decay=0.0)
        losses = [oracle_step(model, samples, adamw) for _ in range(3)]
        assert found[0][kind]["losses"] == pytest.approx(losses, abs=1e-4), kind
        _export_equals(
            directory, model, {n: r for f in found for n, r in f[kind]["logprobs"].items()}
        )


def _export_equals(directory: Path, model: Any, logprobs: dict[int, np.ndarray]) -> None:
    """Of three steps: the merged model, and the adapters beside the frozen one."""
    out = directory / "trained"
    samples = samples_of(9, 30, num=7)
    merged = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    with torch.no_grad():
        for index, sample in enumerate(samples):
            mask, expected = sample.action_mask, oracle_logprobs(merged, sample).numpy()
            assert np.abs(logprobs[index][mask] - expected[mask[1:]]).max() < 1e-5
    before, after = load_weights(directory), load_weights(out)
    assert before.keys() == after.keys()
    adapter = load_file(out / "adapter" / "adapter_model.safetensors")
    adapted = {
        name.removeprefix("base_model.model.").replace(".lora_A.", "."): name
        for name in adapter
        if ".lora_A." in name
    }
    for name, parameter in model.named_parameters():
        if name.endswith(".0.a"):
            module = name.removesuffix(".parametrizations.weight.0.a")
            trained = adapter[f"base_model.model.{module}.lora_A.weight"]
            assert float((trained - parameter).abs().max()) < 0.05 * LR, name
    for name, weight in before.items():
        if name not in adapted:
            assert torch.equal(after[name], weight), name
    ids = torch.arange(3, 33)[None]
    frozen = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    serving = Adapters(frozen)
    serving.load("v1", out / "adapter")
    with torch.no_grad():
        expected = merged(ids, use_cache=False).logits
        with serving.applied(["v1"], [30]):
            assert float((frozen(ids, use_cache=False).logits - expected).abs().max()) < 1e-5
        apart = (frozen(ids, use_cache=False).logits - expected).abs().max()
        assert float(apart) > 1e-2, "the adapters change nothing"


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_gradients_and_steps_are_autograds(
    make_config, oracle_step, tmp_path, num_ranks: int
) -> None:
    _compare(tmp_path, make_config, oracle_step, DENSE, num_ranks, lora=LORA)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_attention_of_experts_and_recomputed_layers(
    make_config, oracle_step, tmp_path, num_ranks: int
) -> None:
    options = {"lora": OF_ATTENTION, "recompute": "full"}
    _compare(tmp_path, make_config, oracle_step, EXPERTS, num_ranks, **options)


def test_a_checkpoint_of_four_ranks_has_adapters_for_one_and_two(make_config, tmp_path) -> None:
    _checkpoints(tmp_path, make_config, "qwen3_5_text", 4, lora=LORA)


def _rank(make_config, directory: Path, **options) -> TrainerRank:
    return TrainerRank(make_config(**(OPTIONS | {"lora": LORA} | options)), directory)


def test_the_optimizer_has_state_of_adapters_alone(make_config, tmp_path) -> None:
    save_model("qwen3", tmp_path / "model")
    rank = _rank(make_config, tmp_path / "model")
    rank.train_step(samples_of(9, 30), step=0, current_version=0)
    (tmp_path / "checkpoint").mkdir()
    rank.save_checkpoint(tmp_path / "checkpoint")
    [folder] = (tmp_path / "checkpoint").iterdir()
    keys = FileSystemReader(folder).read_metadata().state_dict_metadata
    moments = [key for key in keys if key.startswith("optimizer.") and key.endswith(".exp_avg")]
    assert len(moments) == 28 and all(f".{CHILD}." in key for key in moments)
    assert "model.model.embed_tokens.weight" in keys, "a checkpoint is whole"


def test_peft_reads_the_folder(make_config, tmp_path) -> None:
    peft = pytest.importorskip("peft", reason="the package peft is not installed")
    for kind in ("qwen3", "phi3", "qwen3_5_text"):
        model = save_model(kind, tmp_path / kind)
        rank = _rank(make_config, tmp_path / kind)
        for step in range(3):
            rank.train_step(samples_of(9, 30), step=step, current_version=0)
        rank.export_hf(tmp_path / kind / "out")
        ids = torch.arange(3, 33)[None]
        with torch.no_grad():
            adapted = peft.PeftModel.from_pretrained(model, tmp_path / kind / "out" / "adapter")
            merged = AutoModelForCausalLM.from_pretrained(tmp_path / kind / "out")
            found, expected = (m(ids, use_cache=False).logits for m in (adapted, merged.eval()))
        assert float((found - expected).abs().max()) < 1e-5, kind


def test_adapters_of_the_plain_engine_compute_the_same(
    make_model, make_config, batch, tmp_path
) -> None:
    """It has one A for q, k and v, and one for gate and up."""
    _, directory = make_model("qwen3")
    plain = TrainerRank(make_config(lora=LORA), directory)
    for step in range(2):
        plain.train_step(batch, step=step, current_version=0)
    plain.export_hf(tmp_path / "plain")
    peft = load_file(tmp_path / "plain" / "adapter" / "adapter_model.safetensors")
    rank = _rank(make_config, directory)
    weights: Any = rank._weights
    with torch.no_grad():
        for name, part in weights.trained().items():
            module, _, kind = name.partition(f".{CHILD}.")
            weights._put(part, peft.pop(f"base_model.model.{module}.lora_{kind.upper()}.weight"))
    assert not peft
    expected, found = (each.logprobs(batch) for each in (plain, rank))
    assert max(float(np.abs(found[n] - expected[n]).max()) for n in expected) < 1e-5
    exported = [weights_of(each, tmp_path / n) for each, n in ((plain, "a"), (rank, "b"))]
    assert largest_gap(*exported) < 1e-6


def test_an_older_export_and_a_reference_take_their_place(make_config, tmp_path) -> None:
    save_model("qwen3", tmp_path / "model")
    samples = samples_of(9, 30)
    rank = _rank(make_config, tmp_path / "model", kl={"coef": 0.1})
    first = rank.logprobs(samples)
    rank.train_step(samples, step=0, current_version=0)
    second = rank.train_step(samples, step=1, current_version=0)
    assert second.loss_kl is not None and second.loss_kl > 0
    rank.export_hf(tmp_path / "v2")
    moved = rank.logprobs(samples)
    rank.train_step(samples, step=2, current_version=0)
    now = rank.logprobs(samples)
    for export, expected in ((tmp_path / "model", first), (tmp_path / "v2", moved)):
        found = rank.logprobs(samples, export)
        assert max(float(np.abs(found[n] - expected[n]).max()) for n in found) < 1e-5
        assert all(np.array_equal(rank.logprobs(samples)[n], now[n]) for n in now)


def test_in_bfloat16_frozen_weights_have_no_float32_copy(make_config, tmp_path) -> None:
    save_model("qwen3", tmp_path / "model")
    samples, losses = samples_of(9, 30), []
    for dtype in ("float32", "bfloat16"):
        rank = _rank(make_config, tmp_path / "model", dtype=dtype)
        losses.append([rank.train_step(samples, step=n, current_version=0).loss for n in range(3)])
    weights: Any = rank._weights
    kinds = {f".{CHILD}." in name: p.dtype for name, p in weights.parameters().items()}
    assert kinds == {True: torch.float32, False: torch.bfloat16}
    assert losses[1] == pytest.approx(losses[0], abs=3e-2)
    rank.export_hf(tmp_path / "out")
    again = TrainerRank(make_config(**OPTIONS), tmp_path / "out").logprobs(samples)
    own = rank.logprobs(samples)
    assert max(float(np.abs(own[n] - again[n]).max()) for n in own) < 0.1


def test_a_rank_without_sequences_has_a_gradient_of_zeros(make_config, tmp_path) -> None:
    save_model("qwen3", tmp_path)
    engine: Any = _rank(make_config, tmp_path)._engine
    engine.forward_backward([], lambda *_: pytest.fail("no sequence has a loss"))
    for name, parameter in engine.weights.parameters().items():
        if f".{CHILD}." in name:
            assert parameter.grad is not None and not parameter.grad.full_tensor().any(), name
        else:
            assert parameter.grad is None, name


@pytest.mark.parametrize(
    ("kind", "fields", "names", "told"),
    [
        ("gpt2", {}, "all", r"'all' of a 'gpt2' model name no .*attn\.c_attn \(Conv1D\)"),
        (
            "mamba2",
            {"num_heads": 4, "head_dim": 16, "expand": 2, "n_groups": 1},
            "attention",
            r"'attention' of a 'mamba2' model name no linear module: .*mixer\.in_proj \(Linear\)",
        ),
        ("qwen3_moe", {"num_experts": 4}, "all", r"mlp\.experts\.gate_up_proj is a stack"),
    ],
)
def test_targets_that_a_model_lacks_are_refused_before_weights_are_read(
    kind, fields, names, told, tmp_path
) -> None:
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 97}
    AutoConfig.for_model(kind, **(small | fields)).save_pretrained(tmp_path)
    lora = LORA | {"targets": names}
    with pytest.raises(ModelError, match=told):
        check_targets(tmp_path, LoraConfig.model_validate(lora))
    assert not list(tmp_path.glob("*.safetensors"))


def test_a_rank_refuses_them_too(make_config, tmp_path) -> None:
    save_model("gpt_oss", tmp_path)
    with pytest.raises(ModelError, match=r"set trainer\.lora\.targets = 'attention'"):
        _rank(make_config, tmp_path)


def test_one_matrix_of_two_modules_gets_no_adapter(tmp_path) -> None:
    """An export has one weight for both, and each would have a sum of its own."""
    model: Any = save_model("qwen3", tmp_path)
    first, second = (layer.mlp for layer in model.model.layers)
    second.up_proj.weight = first.up_proj.weight
    with pytest.raises(ModelError, match=r"layers\.0\.mlp\.up_proj and .* are one matrix"):
        targets(model, LoraConfig.model_validate(LORA), "model")
    assert targets(model, LoraConfig.model_validate(OF_ATTENTION), "model")


def test_the_folder_names_what_peft_adapts(make_config, tmp_path) -> None:
    save_model("phi3", tmp_path / "model")
    _rank(make_config, tmp_path / "model").export_hf(tmp_path / "out")
    config = json.loads((tmp_path / "out" / "adapter" / "adapter_config.json").read_text())
    assert config["target_modules"] == ["down_proj", "gate_up_proj", "o_proj", "qkv_proj"]
    assert (config["r"], config["lora_alpha"]) == (4, 8.0)
