"""Steps of the plain engine on a real GPU: the numbers of Hugging Face and of the same engine on a
CPU. Skipped where torch sees no GPU; the other tests play CUDA on a CPU (`cuda_shim`)."""

import multiprocessing

import pytest
import torch

from tests.trainer import rank_jobs
from tests.trainer.ranks import run
from tests.trainer.test_mcore_engine import by_hand

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")


def on_the_gpu(config, directory, samples, tmp_path):
    """In a new process: a rank of another test may hold the groups of this one."""
    arguments = (0, str(tmp_path / "store"), config, directory, samples, tmp_path)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(rank_jobs.plain_steps, arguments)


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama", "qwen3_moe"])
def test_the_first_loss_is_hugging_faces(
    family, make_model, make_config, batch, oracle, tmp_path, monkeypatch
):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    model, directory = make_model(family, tied=False)
    config = make_config(device="cuda", engine="plain", micro_batch_tokens=64)
    [first, *_] = on_the_gpu(config, directory, batch, tmp_path)
    loss, _ = by_hand(model, [each for each in batch if each.carries_advantage], oracle)
    assert first.loss == pytest.approx(loss, abs=1e-5)


def test_three_steps_are_those_on_a_cpu(make_model, make_config, batch, tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    _, directory = make_model("qwen3")
    config = make_config(device="cuda", engine="plain", micro_batch_tokens=64)
    found = on_the_gpu(config, directory, batch, tmp_path)
    [expected] = run(
        1, rank_jobs.plain_steps, make_config(micro_batch_tokens=64), directory, batch, tmp_path
    )
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, abs=1e-5)
        assert ours.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-4)
