"""Adapters whose matrices tensor-parallel ranks share: what one rank computes, and its files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.trainer import rank_jobs
from tests.trainer.conftest import largest_gap
from tests.trainer.ranks import run
from trainer.model.convert import shard_dim, to_hf
from trainer.model.hf_directory import load_weights

LORA = {"rank": 4, "alpha": 8.0}
LR = 1e-3
ADAMW = {"lr": LR, "eps": 1e-6, "weight_decay": 0.01, "max_grad_norm": 1e9}
TP2, PP2, DP2 = ({f"{kind}_parallel": 2} for kind in ("tensor", "pipeline", "data"))
SP = {"sequence_parallel": True}
LAYOUTS = [("plain", TP2 | DP2)] + [("mcore", TP2 | part) for part in ({}, SP, PP2, DP2)]


def _whole(ranks: list[dict[str, Any]], hf: Any) -> dict[str, torch.Tensor]:
    """Gradients of A by the names of matrices and of B by Hugging Face's, of all ranks."""
    found: dict[str, torch.Tensor] = {}
    for stage in sorted({rank["pp"] for rank in ranks}):
        of_stage = [rank for rank in ranks if rank["pp"] == stage]
        parts = sorted((r for r in of_stage if r["copy"] == 0), key=lambda rank: rank["tp"])
        for name in parts[0]["grads"]:
            a_parts, b_parts = (
                [torch.from_numpy(rank["grads"][name][n]) for rank in parts] for n in (0, 1)
            )
            whole = b_parts if shard_dim(name) == 1 else a_parts
            assert all(float((part - whole[0]).abs().max()) < 1e-6 for part in whole), name
            found[name] = torch.cat(a_parts, dim=1) if shard_dim(name) == 1 else a_parts[0]
            found |= to_hf(name, b_parts[:1] if shard_dim(name) == 1 else b_parts, hf)
    return found


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_any_layout_computes_what_one_rank_computes(
    family: str, make_model, make_config, batch, tmp_path: Path
) -> None:
    model, directory = make_model(family)
    samples = [sample for sample in batch if sample.carries_advantage]
    fields: dict[str, Any] = {"lora": LORA, "optimizer": ADAMW, "micro_batch_tokens": 64}

    def ranks(engine: str, layout: dict[str, Any], out: Path) -> list[dict[str, Any]]:
        config = make_config(engine=engine, **fields, **layout)
        given = config, directory, samples, out
        return run(config.trainer.world_size, rank_jobs.adapted, *given)

    [alone] = ranks("plain", {}, tmp_path / "alone")
    expected = _whole([alone], model.config)
    assert len(expected) == 2 * (4 + 7)
    assert all(grad.any() for grad in expected.values())
    adapter = Path("adapter") / "adapter_model.safetensors"
    for number, (engine, layout) in enumerate(LAYOUTS if family == "qwen3" else LAYOUTS[:2]):
        out = tmp_path / str(number)
        found = ranks(engine, layout, out)
        for rank in found:
            assert rank["loss"] == pytest.approx(alone["loss"], abs=1e-5), layout
            assert rank["norm"] == pytest.approx(alone["norm"], rel=1e-5), layout
            assert rank["losses"] == pytest.approx(alone["losses"], abs=1e-5), layout
        assert largest_gap(_whole(found, model.config), expected) < 1e-5, layout
        for folder, load in ((".", load_weights), (adapter, load_file)):
            mine, theirs = load(out / folder), load(tmp_path / "alone" / folder)
            assert mine.keys() == theirs.keys()
            assert largest_gap(mine, theirs) < 0.05 * LR, layout
        assert largest_gap(load_weights(directory), load_weights(out)) > LR


@pytest.mark.parametrize(("saved", "loaded"), [(TP2, DP2), (TP2, PP2), (DP2, TP2)])
def test_an_mcore_checkpoint_loads_in_another_layout(
    saved, loaded, make_model, make_config, batch, tmp_path: Path
) -> None:
    _, directory = make_model("qwen3")
    fields: dict[str, Any] = {"engine": "mcore", "lora": LORA, "optimizer": ADAMW}
    given = directory, batch, tmp_path
    [first, _] = run(2, rank_jobs.saved_after_two_steps, make_config(**fields, **saved), *given)
    [again, _] = run(2, rank_jobs.step_after_loading, make_config(**fields, **loaded), *given)
    assert again.loss == pytest.approx(first.loss, abs=1e-6)
    [folder] = tmp_path.glob("again*")
    assert largest_gap(load_weights(folder), load_weights(tmp_path / "third")) < 1e-6


def test_a_plain_checkpoint_resumes(make_model, make_config, batch, tmp_path: Path) -> None:
    _, directory = make_model("qwen3")
    config = make_config(lora=LORA, optimizer=ADAMW, **TP2)
    for found, expected in run(2, rank_jobs.plain_third_steps, config, directory, batch, tmp_path):
        assert (found.loss, found.grad_norm) == (expected.loss, expected.grad_norm)
        assert np.isfinite(found.loss) and found.grad_norm > 0
