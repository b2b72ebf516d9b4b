"""Ranks of the fsdp engine that share model and batch: one rank's numbers, and its checkpoints."""

import shutil

import numpy as np
import pytest

from tests.trainer import fsdp_jobs
from tests.trainer.any_models import FAMILIES, samples_of, save_model
from tests.trainer.conftest import largest_gap
from tests.trainer.ranks import run
from trainer.model.hf_directory import load_weights

LR = 5e-3
OPTIONS = {"engine": "fsdp", "micro_batch_tokens": 64}


def _models(tmp_path, kinds) -> dict:
    for kind in kinds:
        save_model(kind, tmp_path / kind)
    return {kind: tmp_path / kind for kind in kinds}


def _compare(tmp_path, make_config, kinds, num_ranks: int, **options) -> None:
    """Ranks against one rank, for each kind."""
    samples = samples_of(9, 30, num=7)
    directories = _models(tmp_path, kinds)
    expected: dict = {}
    for number in (1, num_ranks):
        config = make_config(**OPTIONS, data_parallel=number, **options)
        found = run(number, fsdp_jobs.passes_and_steps, config, directories, samples)
        for kind, directory in directories.items():
            moved = directory.with_name(f"{kind}-{number}")
            (directory / "trained").rename(moved)
        if number == 1:
            [expected] = found
            continue
        for kind in kinds:
            own = expected[kind]
            shares = [rank[kind]["logprobs"] for rank in found]
            logprobs = {n: row for share in shares for n, row in share.items()}
            assert sum(map(len, shares)) == len(logprobs) == len(samples)
            for n, row in own["logprobs"].items():
                assert np.abs(logprobs[n] - row).max() < 1e-5, kind
            for rank in found:
                assert rank[kind]["loss"] == pytest.approx(own["loss"], abs=1e-5), kind
                assert rank[kind]["norm"] == pytest.approx(own["norm"], rel=1e-4), kind
                assert rank[kind]["losses"] == pytest.approx(own["losses"], abs=1e-4), kind
                for name, grad in rank[kind]["grads"].items():
                    assert float((grad - own["grads"][name]).abs().max()) < 1e-5, (kind, name)
            weights = [load_weights(tmp_path / f"{kind}-{n}") for n in (1, num_ranks)]
            assert largest_gap(*weights) < 0.05 * LR, kind


def test_two_ranks_equal_one(make_config, tmp_path) -> None:
    _compare(tmp_path, make_config, FAMILIES, 2)


@pytest.mark.long
def test_four_ranks_equal_one(make_config, tmp_path) -> None:
    _compare(tmp_path, make_config, FAMILIES, 4)


def test_two_ranks_equal_one_with_muon_and_recomputation(make_config, tmp_path) -> None:
    """Muon moves each weight by a share of its rate, whatever the gradient's size."""
    optimizer = {"name": "muon", "muon_lr": LR}
    _compare(
        tmp_path, make_config, ["qwen3", "qwen3_5_text"], 2, optimizer=optimizer, recompute="full"
    )


def _checkpoints(tmp_path, make_config, kind: str, num_ranks: int, **options) -> None:
    samples = samples_of(9, 30)
    model = tmp_path / "model"
    save_model(kind, model)
    out = tmp_path / "out"
    for name in ("at_once", "behind"):
        (out / name).mkdir(parents=True)
    config = make_config(**OPTIONS, data_parallel=num_ranks, **options)
    losses = run(num_ranks, fsdp_jobs.saved_after_two_steps, config, model, samples, out)
    expected = load_weights(out / "third")
    for number in (1, 2):
        config = make_config(**OPTIONS, data_parallel=number, **options)
        found = run(number, fsdp_jobs.step_after_loading, config, model, samples, out)
        assert found[0] == pytest.approx(losses[0], abs=1e-5)
        for name in ("at_once", "behind"):
            again = load_weights(out / f"{name}-{number}")
            assert largest_gap(again, expected) < (0 if number == num_ranks else 0.05 * LR) + 1e-12
    shutil.rmtree(out)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3_moe", "deepseek_v3"])
def test_a_checkpoint_of_two_ranks_loads_on_one_and_two(make_config, tmp_path, kind) -> None:
    _checkpoints(tmp_path, make_config, kind, 2)


def test_a_checkpoint_has_muons_momentum(make_config, tmp_path) -> None:
    _checkpoints(tmp_path, make_config, "qwen3", 2, optimizer={"name": "muon", "muon_lr": LR})


@pytest.mark.long
def test_a_checkpoint_of_four_ranks_loads_on_one_and_two(make_config, tmp_path) -> None:
    _checkpoints(tmp_path, make_config, "qwen3_5_text", 4)
