"""Steps of a campaign that was changed, on real ranks: as if it had always run with the change."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer import rank_jobs
from tests.trainer.conftest import weights_of
from tests.trainer.ranks import run
from tests.trainer.test_mcore_engine import ADAMW
from trainer.model.hf_directory import load_weights
from trainer.process.rank import TrainerRank

CHANGES: list[dict[str, Any]] = [
    {"optimizer": {"lr": 1e-3}},
    {"optimizer": {"max_grad_norm": 0.01}},
    {"optimizer": {"warmup_steps": 4, "final_lr_fraction": 0.5}, "num_steps": 20},
    {"clip_low": 0.01, "clip_high": 0.02, "updates_per_step": 2},
    {"entropy_coef": 0.05, "mini_batches": 2},
]


@pytest.mark.parametrize("changed", CHANGES, ids=str)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_changed_step_has_the_bits_of_a_rank_that_was_made_with_it(
    optimizer: str, changed: dict[str, Any], make_model, make_config, batch, tmp_path: Path
) -> None:
    directory = make_model("qwen3")[1]
    named = {"name": optimizer}
    before = make_config(optimizer=named)
    after = make_config(**changed | {"optimizer": named | changed.get("optimizer", {})})
    rank = TrainerRank(before, directory)
    rank.train_step(batch, step=0, current_version=0, config=before)
    (tmp_path / "checkpoint").mkdir()
    rank.save_checkpoint(tmp_path / "checkpoint")
    unchanged = TrainerRank(before, directory)
    unchanged.load_checkpoint(tmp_path / "checkpoint")
    unchanged.train_step(batch, step=1, current_version=0)

    found = rank.train_step(batch, step=1, current_version=0, config=after)
    fresh = TrainerRank(after, directory)
    fresh.load_checkpoint(tmp_path / "checkpoint")
    expected = fresh.train_step(batch, step=1, current_version=0)
    assert (found.loss, found.grad_norm, found.lr) == (
        expected.loss,
        expected.grad_norm,
        expected.lr,
    )
    here, there, other = (
        weights_of(each, tmp_path / str(n)) for n, each in enumerate((rank, fresh, unchanged))
    )
    for name, weight in here.items():
        assert (weight == there[name]).all(), name
    assert any((weight != other[name]).any() for name, weight in here.items()), "it counts"


def test_a_changed_step_of_mcore_equals_the_plain_one(
    make_model, make_config, batch, tmp_path: Path
) -> None:
    directory = make_model("qwen3")[1]
    changed = {"lr": ADAMW["lr"] / 10, "max_grad_norm": 0.01}
    before, after = make_config(optimizer=ADAMW), make_config(optimizer=ADAMW | changed)
    plain = TrainerRank(before, directory)
    for step, config in enumerate((before, after, after)):
        plain.train_step(batch, step=step, current_version=0, config=config)
    plain.export_hf(tmp_path / "plain")
    configs = [make_config(engine="mcore", optimizer=ADAMW | each) for each in ({}, changed)]
    run(1, rank_jobs.changed_steps, *configs, directory, batch, tmp_path / "mcore")
    expected, found = load_weights(tmp_path / "plain"), load_weights(tmp_path / "mcore")
    gap = max(float(np.abs((found[name] - expected[name]).numpy()).max()) for name in expected)
    assert gap < 0.05 * ADAMW["lr"], gap
