"""Two ranks of the fsdp engine under the driver on a local Ray, and their checkpoints on disk."""

from dataclasses import replace
from pathlib import Path

import pytest

from mainspring.training.step_metrics import Origin
from mainspring.training.training_faults import CheckpointUnusable
from tests.trainer.any_models import samples_of, save_model
from trainer.engines import checkpoint
from trainer.engines.checkpoint import HF_DIRECTORY, SHARDS, Identity, Sharding
from trainer.model.hf_directory import load_weights
from trainer.process.driver import TrainerDriver

ORIGIN = Origin(campaign="t", uid="uid", config_digest="digest")


def _identity(version: int) -> Identity:
    return Identity(origin=ORIGIN, version=version, batch="b")


def _equal(one: Path, other: Path) -> bool:
    weights = [load_weights(directory / HF_DIRECTORY) for directory in (one, other)]
    return all((weights[0][name] == weight).all() for name, weight in weights[1].items())


def test_checkpoints_at_once_and_in_the_background_resume_a_campaign(
    driver: TrainerDriver, make_config, tmp_path
) -> None:
    model, samples = tmp_path / "model", samples_of(9, 30)
    save_model("qwen3_moe", model)
    config = make_config(engine="fsdp", data_parallel=2, micro_batch_tokens=64)
    driver.start(config, model)
    for step in range(2):
        driver.train_step(samples, step=step, current_version=0)
    manifest = driver.save(tmp_path / "v2", _identity(2), 1)
    assert manifest.sharding is Sharding.TORCH and not manifest.has_critic
    alone = driver.save(tmp_path / "w2", _identity(2), 1, weights_only=True)
    driver.background.begin(tmp_path / "w2", alone, Sharding.TORCH)
    expected = driver.train_step(samples, step=2, current_version=0)
    assert driver.background.finish(wait=True) == 2
    driver.save(tmp_path / "v3", _identity(3), 1)
    for name in ("v2", "w2"):
        checkpoint.verify(tmp_path / name, checkpoint.read(tmp_path / name, ORIGIN))
        driver.start(config, model)
        driver.load(tmp_path / name, ORIGIN, 2)
        found = driver.train_step(samples, step=2, current_version=0)
        assert replace(found, seconds=0.0).loss == expected.loss
        driver.save(tmp_path / f"{name}-again", _identity(3), 1)
        assert _equal(tmp_path / f"{name}-again", tmp_path / "v3")
    (tmp_path / "v2" / SHARDS / ".metadata").unlink()
    with pytest.raises(CheckpointUnusable, match=r"lacks its file shards/\.metadata"):
        driver.load(tmp_path / "v2", ORIGIN, 2)
    driver.start(make_config(), _dense(tmp_path))
    with pytest.raises(CheckpointUnusable, match="was saved as torch, the campaign's engine loads"):
        driver.load(tmp_path / "w2", ORIGIN, 2)


def _dense(tmp_path: Path) -> Path:
    save_model("qwen3", tmp_path / "dense")
    return tmp_path / "dense"
