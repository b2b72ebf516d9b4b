"""A campaign's checkpoints have its critic, or are refused by name."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mainspring.config.campaign import CampaignConfig
from mainspring.training.step_metrics import Origin
from mainspring.training.training_faults import CheckpointUnusable, TrainerFenced
from mainspring.trajectories.samples import Sample
from tests.trainer.conftest import MakeModel
from tests.trainer.test_trainer_checkpoint import MANIFEST, ORIGIN, write, write_export
from trainer.engines import checkpoint
from trainer.engines.checkpoint import Identity, Sharding
from trainer.process.batch_file import batch_file
from trainer.process.driver import TrainerDriver


def test_a_checkpoint_without_the_critic_that_was_written_is_not_committed(tmp_path: Path) -> None:
    target = tmp_path / "v3"
    temporary = checkpoint.begin(target, 1)
    write(temporary)
    with pytest.raises(TrainerFenced, match=r"critic-tp0.pt was removed while it was written"):
        checkpoint.commit(temporary, target, MANIFEST, has_critic=True)
    (temporary / "critic-tp0.pt").write_bytes(b"values")
    manifest = checkpoint.commit(temporary, target, MANIFEST, has_critic=True)
    assert manifest.has_critic and checkpoint.read(target, ORIGIN).has_critic
    (target / "critic-tp0.pt").unlink()
    with pytest.raises(CheckpointUnusable, match=r"lacks its file critic-tp0.pt"):
        checkpoint.verify(target, manifest)


def test_a_checkpoint_without_the_critics_shards_by_torch_is_not_committed(tmp_path: Path) -> None:
    target = tmp_path / "v3"
    manifest = MANIFEST.model_copy(update={"sharding": Sharding.TORCH})
    temporary = checkpoint.begin(target, 1)
    write_export(temporary)
    for folder in ("shards", "critic"):
        with pytest.raises(TrainerFenced, match=rf"{folder}/\.metadata was removed while it was"):
            checkpoint.commit(temporary, target, manifest, has_critic=True)
        (temporary / folder).mkdir()
        (temporary / folder / ".metadata").write_bytes(b"shards")
    whole = checkpoint.commit(temporary, target, manifest, has_critic=True)
    assert whole.has_critic and checkpoint.read(target, ORIGIN).has_critic
    (target / "critic" / ".metadata").unlink()
    with pytest.raises(CheckpointUnusable, match=r"lacks its file critic/\.metadata"):
        checkpoint.verify(target, whole)


@pytest.mark.parametrize(
    "engine", [{}, {"engine": "fsdp", "data_parallel": 2}], ids=["plain", "fsdp"]
)
def test_a_campaign_with_a_critic_resumes_from_checkpoints_with_one_alone(
    engine: dict[str, Any],
    driver: TrainerDriver,
    make_model: MakeModel,
    make_config: Callable[..., CampaignConfig],
    batch: list[Sample],
    tmp_path: Path,
) -> None:
    source = make_model("qwen3")[1]
    origin = Origin(campaign="t", uid="u", config_digest="0123456789abcdef")
    judged = [replace(each, reward=float(n % 2)) for n, each in enumerate(batch)]
    without = make_config(**engine)
    config = make_config(advantage="gae", filter="none", critic={"lr": 1e-3}, **engine)
    driver.start(without, source)
    assert not driver.save(tmp_path / "bare", Identity(origin=origin, version=1), 1).has_critic
    driver.start(config, source)
    with pytest.raises(
        CheckpointUnusable, match=r"bare lacks a critic, and the campaign trains one"
    ):
        driver.load(tmp_path / "bare", origin, 1)
    with batch_file(tmp_path, judged, step=1, epoch=1) as file:
        driver.train_step(file, step=0, current_version=0)
    manifest = driver.save(tmp_path / "whole", Identity(origin=origin, version=1), 1)
    assert manifest.has_critic
    weights = driver.save(
        tmp_path / "weights", Identity(origin=origin, version=1), 1, weights_only=True
    )
    assert not weights.has_critic
    second = driver.train_step(judged, step=1, current_version=0)
    assert driver.load(tmp_path / "whole", origin, 1) == manifest
    again = driver.train_step(judged, step=1, current_version=0)
    assert replace(again, seconds=0.0) == replace(second, seconds=0.0)
    driver.start(without, source)
    with pytest.raises(CheckpointUnusable, match=r"whole holds a critic, and .* has none"):
        driver.load(tmp_path / "whole", origin, 1)
    victim = next(file.path for file in manifest.files if file.path.startswith("critic"))
    (tmp_path / "whole" / victim).unlink()
    driver.start(config, source)
    with pytest.raises(CheckpointUnusable, match="lacks its file critic"):
        driver.load(tmp_path / "whole", origin, 1)
