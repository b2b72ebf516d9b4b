"""Low-rank adapters: what is trained, stored and exported, beside Hugging Face and PEFT."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from mainspring.config.campaign import CampaignConfig
from mainspring.config.training.parallel import MCORE
from tests.trainer import rank_jobs
from tests.trainer.conftest import largest_gap, weights_of
from tests.trainer.ranks import run
from trainer.model import lora
from trainer.model.hf_directory import load_weights
from trainer.process.rank import TrainerRank

LORA = {"rank": 4, "alpha": 8.0}


def trained(rank: TrainerRank) -> dict[str, torch.Tensor]:
    model = rank._weights._model
    return {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
def test_fresh_adapters_change_nothing_and_alone_are_trained(
    make_model, make_config, batch, family: str, tmp_path: Path
) -> None:
    _, directory = make_model(family)
    plain, adapted = (
        TrainerRank(make_config(**fields), directory) for fields in ({}, {"lora": LORA})
    )
    for n, expected in plain.logprobs(batch).items():
        np.testing.assert_array_equal(adapted.logprobs(batch)[n], expected)
    before = {n: w.clone() for n, w in lora.stored_weights(adapted._weights._model).items()}
    parts = trained(adapted)
    assert len(parts) == 2 * 4 * 2, "A and B of four matrices in each of two layers"
    adapted.train_step(batch, step=0, current_version=0)
    for name, weight in lora.stored_weights(adapted._weights._model).items():
        assert torch.equal(weight, before[name]), name
    moved = [name for name, part in trained(adapted).items() if not torch.equal(part, parts[name])]
    assert len(moved) == 8, "A has no gradient while B is zero"
    adapted.train_step(batch, step=1, current_version=0)
    moved = [name for name, part in trained(adapted).items() if not torch.equal(part, parts[name])]
    assert len(moved) == len(parts)


def test_gradients_are_those_of_the_chain_rule(make_model, make_config, batch) -> None:
    """Of A and B, from the gradient of the whole matrix that the plain engine gets."""
    _, directory = make_model("qwen3")
    fields: dict[str, Any] = {"optimizer": {"max_grad_norm": 1e9}}
    adapted = TrainerRank(make_config(lora=LORA, **fields), directory)
    model = adapted._weights._model
    rng = torch.Generator().manual_seed(1)
    for adapter in lora.adapters(model).values():
        adapter.b.data.normal_(0, 0.02, generator=rng)
    whole = TrainerRank(make_config(**fields), directory)
    mine = dict(whole._weights._model.named_parameters())
    for name in lora.stored_weights(model):
        mine[name].data.copy_(lora.merged(model, name, lora.stored_weights(model)[name]))
    grads = {}
    for rank in (adapted, whole):
        step = rank_jobs.PolicyStep(
            rank._campaign,
            rank._engine,
            rank._engine.optimizer(rank._config.optimizer),
            rank._processes,
            loss=rank._loss,
            reference=None,
        )
        step._accumulate(rank_jobs.MiniBatch(batch), 0)
        grads[rank] = {n: p.grad for n, p in rank._weights._model.named_parameters()}
    for name, adapter in lora.adapters(model).items():
        full = grads[whole][name] * adapter.scale
        assert largest(adapter.b.grad, full @ adapter.a.T) < 1e-5
        assert largest(adapter.a.grad, adapter.b.T @ full) < 1e-5


def largest(found: torch.Tensor | None, expected: torch.Tensor) -> float:
    assert found is not None
    return float((found - expected).abs().max())


def trained_rank(make_model, make_config, batch, **fields: Any) -> tuple[Any, Path, TrainerRank]:
    hf, directory = make_model("qwen3")
    rank = TrainerRank(make_config(lora=LORA, **fields), directory)
    for step in range(2):
        rank.train_step(batch, step=step, current_version=0)
    return hf, directory, rank


def test_the_export_is_the_policy_and_the_adapter_makes_it_from_the_base(
    make_model, make_config, batch, tmp_path: Path
) -> None:
    _, directory, rank = trained_rank(make_model, make_config, batch)
    found = rank.logprobs(batch)
    exported = weights_of(rank, tmp_path / "hf")
    again = TrainerRank(make_config(), tmp_path / "hf")
    for n, expected in found.items():
        np.testing.assert_array_equal(again.logprobs(batch)[n], expected)
    config = json.loads((tmp_path / "hf" / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (4, 8.0)
    assert config["target_modules"] == sorted(
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    )
    file = tmp_path / "hf" / "adapter" / "adapter_model.safetensors"
    assert file.stat().st_mode == (tmp_path / "hf" / "config.json").stat().st_mode
    adapter = load_file(file)
    base = load_weights(directory)
    scale = config["lora_alpha"] / config["r"]
    for name in [n for n in adapter if n.endswith("lora_A.weight")]:
        weight = name.removeprefix("base_model.model.").replace("lora_A.weight", "weight")
        base[weight] += scale * adapter[name.replace("lora_A", "lora_B")] @ adapter[name]
    assert largest_gap(base, exported) < 1e-6


def test_peft_reads_the_adapter(make_model, make_config, batch, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="the package peft is not installed")
    hf, _, rank = trained_rank(make_model, make_config, batch)
    weights_of(rank, tmp_path / "hf")
    ids = torch.from_numpy(batch[0].token_ids.astype(np.int64))[None]
    with torch.no_grad():
        adapted = peft.PeftModel.from_pretrained(hf, tmp_path / "hf" / "adapter")
        logits = adapted(input_ids=ids).logits
        expected = type(hf).from_pretrained(tmp_path / "hf")(input_ids=ids).logits
    assert float((logits - expected).abs().max()) < 1e-4
    adapted.unload()


def test_a_checkpoint_resumes_with_optimizer(make_model, make_config, batch, tmp_path) -> None:
    _, directory, rank = trained_rank(make_model, make_config, batch)
    rank.save_checkpoint(tmp_path)
    expected = rank.train_step(batch, step=2, current_version=0)
    other = TrainerRank(make_config(lora=LORA), directory)
    other.load_checkpoint(tmp_path)
    found = other.train_step(batch, step=2, current_version=0)
    assert (found.loss, found.grad_norm) == (expected.loss, expected.grad_norm)
    mine, theirs = trained(rank), trained(other)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_another_models_weights_have_no_adapter(make_model, make_config, batch, tmp_path) -> None:
    """As when an evaluation's log-probs are recomputed under an older export."""
    _, _, rank = trained_rank(make_model, make_config, batch)
    weights_of(rank, tmp_path / "before")
    before = rank.logprobs(batch)
    rank.train_step(batch, step=2, current_version=0)
    moved = rank.logprobs(batch)
    found = rank.logprobs(batch, tmp_path / "before")
    for n, expected in before.items():
        assert np.abs(found[n] - expected).max() < 1e-5
        np.testing.assert_array_equal(rank.logprobs(batch)[n], moved[n])


def test_attention_alone_can_be_adapted(make_model, make_config) -> None:
    fields = LORA | {"targets": "attention"}
    rank = TrainerRank(make_config(lora=fields), make_model("qwen3")[1])
    adapted = {name.split(".", 3)[3] for name in lora.adapters(rank._weights._model)}
    assert adapted == {f"{inner}.weight" for inner in lora.ATTENTION}


ADAMW = {"lr": 1e-3, "eps": 1e-6, "weight_decay": 0.01, "max_grad_norm": 1e9}


@pytest.mark.parametrize("layout", [{}, {"pipeline_parallel": 2}, {"data_parallel": 2}])
def test_the_mcore_engine_trains_the_same_adapters(
    make_model, make_config, batch, tmp_path: Path, layout: dict[str, int]
) -> None:
    _, directory = make_model("qwen3")
    plain = TrainerRank(make_config(lora=LORA, optimizer=ADAMW), directory)
    for step in range(3):
        plain.train_step(batch, step=step, current_version=0)
    expected = weights_of(plain, tmp_path / "plain")
    config = make_config(engine=MCORE, device="cpu", lora=LORA, optimizer=ADAMW, **layout)
    world_size = config.trainer.world_size
    run(world_size, rank_jobs.steps, config, directory, batch, tmp_path / "mcore")
    assert largest_gap(load_weights(tmp_path / "mcore"), expected) < 0.05 * ADAMW["lr"]
    assert largest_gap(load_weights(directory), expected) > ADAMW["lr"]
    assert len(load_file(tmp_path / "mcore" / "adapter" / "adapter_model.safetensors")) == 2 * 7 * 2


def test_an_mcore_checkpoint_of_adapters_loads_in_another_layout(
    make_model, make_config, batch, tmp_path: Path
) -> None:
    _, directory = make_model("qwen3")
    fields: dict[str, Any] = {"engine": MCORE, "lora": LORA, "optimizer": ADAMW}
    given = directory, batch, tmp_path
    [saved, _] = run(
        2, rank_jobs.saved_after_two_steps, make_config(**fields, data_parallel=2), *given
    )
    [loaded, _] = run(
        2, rank_jobs.step_after_loading, make_config(**fields, pipeline_parallel=2), *given
    )
    assert loaded.loss == pytest.approx(saved.loss, abs=1e-6)
    expected, found = (load_weights(tmp_path / name) for name in ("third", "again21"))
    assert largest_gap(found, expected) < 1e-6


def test_what_adapters_do_not_go_with_is_refused() -> None:
    raw = {"name": "c", "policy": {"model": "/m"}}

    def refused(match: str, **trainer: Any) -> None:
        with pytest.raises(ValidationError, match=match):
            CampaignConfig.model_validate(raw | {"trainer": {"lora": LORA} | trainer})

    refused("set optimizer.name = 'adamw'", optimizer={"name": "muon"})
    with pytest.raises(ValidationError, match="starts from random weights"):
        CampaignConfig.model_validate(
            {"name": "c", "trainer": {"lora": LORA, "warm_start": {}, "device": "cpu"}}
        )
