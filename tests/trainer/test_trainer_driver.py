"""The driver on a local Ray: two tensor-parallel ranks, then two data-parallel ones.

Starting ranks costs seconds, so each layout is started once and its tests build on one another.
"""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import ray
import torch

from mainspring.errors import ModelError
from trainer.checkpoint import HF_DIRECTORY, read_manifest
from trainer.driver import TrainerDriver, TrainerLost
from trainer.hf_directory import load_weights
from trainer.rank import LogprobGapTooLarge


@pytest.mark.parametrize("layout", ["tensor_parallel", "data_parallel"])
async def test_two_ranks_train_like_hugging_face(
    layout, driver: TrainerDriver, make_model, make_config, batch, oracle_step, tmp_path
):
    model, source = make_model("qwen3", tied=layout == "tensor_parallel")
    config = make_config(**{layout: 2}, micro_batch_tokens=64)
    # in a thread that ends with the call, as an activity's may
    with ThreadPoolExecutor(max_workers=1) as executor:
        executor.submit(driver.start, config, source).result()

    # served log-probs are the trainer's own: any layout recomputes them
    served = [
        replace(sample, logprobs=found)
        for sample, found in zip(batch, driver.logprobs(batch), strict=True)
    ]
    largest, mean, num_tokens = driver.logprob_gap(served, version=0)
    assert largest < 1e-6 and mean < 1e-6
    assert num_tokens == sum(int((s.versions == 0).sum()) for s in served)

    adamw = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(3):
        expected = oracle_step(model, batch, adamw)
        metrics = driver.train_step(batch, step=step, current_version=0)
        assert metrics.loss == pytest.approx(expected, abs=1e-5)
        assert metrics.num_samples == 7
    driver.save(tmp_path / "v3", version=3)
    trained = load_weights(tmp_path / "v3" / HF_DIRECTORY)
    reference = dict(model.named_parameters())
    gaps = {n: float((w - reference[n]).abs().max()) for n, w in trained.items()}
    # q and k norms are replicated, but each rank's heads give only part of their gradient
    assert max(gap for name, gap in gaps.items() if "_norm" in name) < 1e-4
    assert max(gaps.values()) < 1e-4


async def test_saving_twice_keeps_what_is_there(driver, batch, tmp_path):
    target = tmp_path / "v4"
    driver.save(target, version=4)
    before = (target / HF_DIRECTORY / "model.safetensors").read_bytes()
    after_four = driver.logprobs(batch)
    driver.train_step(batch, step=3, current_version=0)
    driver.save(target, version=4)  # as an attempt that crashed after saving would
    assert (target / HF_DIRECTORY / "model.safetensors").read_bytes() == before
    for a, b in zip(driver.logprobs(batch), after_four, strict=True):
        assert (a == b).all()
    with pytest.raises(ModelError, match="expected 5"):
        driver.save(target, version=5)
    assert driver.load(target) == read_manifest(target).version == 4


async def test_a_failed_step_leaves_the_ranks_usable(driver, make_model, make_config, batch):
    broken = [replace(sample, logprobs=sample.logprobs - 200) for sample in batch]
    with pytest.raises(LogprobGapTooLarge):
        driver.train_step(broken, step=4, current_version=0)
    assert driver.train_step(batch, step=4, current_version=0).grad_norm > 0


async def test_a_killed_rank_is_an_error_not_a_hang(driver, batch):
    pids = ray.get([actor.__ray_call__.remote(lambda _: os.getpid()) for actor in driver._actors])
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(TrainerLost):
        driver.train_step(batch, step=5, current_version=0)
    with pytest.raises(TrainerLost, match="no ranks"):
        driver.logprobs(batch)
