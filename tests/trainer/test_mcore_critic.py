"""The critic of the mcore engine on CPU under the shim: what the plain engine's critic computes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mainspring.training.step_metrics import CRITIC_NAMES, StepMetrics
from mainspring.training.training_faults import CheckpointUnusable, TrainerFenced
from mainspring.trajectories.samples import Sample
from tests.trainer import rank_jobs
from tests.trainer.conftest import MakeModel
from tests.trainer.critics import MakeConfig, with_critic, with_rewards
from tests.trainer.ranks import run
from tests.trainer.test_mcore_engine import ALONE, CP2, DP2, PP2, SP, TP2, name_of
from tests.trainer.test_trainer_checkpoint import MANIFEST, ORIGIN, write_export
from trainer.engines import checkpoint
from trainer.engines.checkpoint import Sharding
from trainer.process.rank import TrainerRank

FIELDS: dict[str, Any] = {"micro_batch_tokens": 64, "optimizer": {"eps": 1e-6}}
MCORE: dict[str, Any] = {"engine": "mcore", **FIELDS}


@pytest.fixture
def rewarded(batch: list[Sample]) -> list[Sample]:
    return with_rewards(batch)


def are_close(found: list[StepMetrics], expected: list[StepMetrics], bound: float) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.loss == pytest.approx(theirs.loss, abs=bound)
        assert mine.grad_norm == pytest.approx(theirs.grad_norm, abs=bound)
        for name in CRITIC_NAMES:
            assert mine.values[name] == pytest.approx(theirs.values[name], abs=bound), name


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("layout", [ALONE, DP2, TP2 | SP, CP2 | TP2, PP2, PP2 | TP2], ids=name_of)
def test_three_steps_equal_those_of_the_plain_engine(
    layout: dict[str, Any],
    is_tied: bool,
    make_model: MakeModel,
    make_config: MakeConfig,
    rewarded: list[Sample],
    tmp_path: Path,
) -> None:
    _, directory = make_model("qwen3", tied=is_tied)
    plain = TrainerRank(with_critic(make_config, **FIELDS), directory)
    expected = [plain.train_step(rewarded, step=n, current_version=0) for n in range(3)]
    config = with_critic(make_config, **MCORE, **layout)
    ranks = run(
        config.trainer.world_size, rank_jobs.steps, config, directory, rewarded, tmp_path / "out"
    )
    for found in ranks:
        are_close(found, expected, 1e-4)
    moved = [each.values["value_mean"] for each in expected]
    assert moved[0] == 0.0 and abs(moved[2] or 0) > 0.01


def test_experts_have_a_critic_too(
    make_model: MakeModel, make_config: MakeConfig, rewarded: list[Sample], tmp_path: Path
) -> None:
    _, directory = make_model("qwen3_moe", tied=False)
    alone, shared = (
        run(
            config.trainer.world_size, rank_jobs.steps, config, directory, rewarded, tmp_path / name
        )
        for name, config in (
            ("alone", with_critic(make_config, **MCORE)),
            ("shared", with_critic(make_config, **MCORE, **DP2, expert_parallel=2)),
        )
    )
    are_close(shared[0], alone[0], 1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_checkpoint_with_a_critic_is_loaded_under_another_layout(
    dtype: str,
    make_model: MakeModel,
    make_config: MakeConfig,
    rewarded: list[Sample],
    tmp_path: Path,
) -> None:
    """With both optimizers: the next step is the one that would have followed."""
    _, directory = make_model("qwen3")
    saved = with_critic(make_config, **MCORE, **TP2, **DP2, dtype=dtype)
    [expected, *_] = run(4, rank_jobs.saved_after_two_steps, saved, directory, rewarded, tmp_path)
    assert np.isfinite(expected.values["critic_grad_norm"])
    for layout, bound in ((TP2 | DP2, 0.0), (CP2, 1e-5), (PP2, 1e-5)):
        config = with_critic(make_config, **MCORE, **layout, dtype=dtype)
        found = run(
            config.trainer.world_size,
            rank_jobs.step_after_loading,
            config,
            directory,
            rewarded,
            tmp_path,
        )[0]
        if dtype == "bfloat16" and bound:
            bound = 2e-2  # sums in another order move a weight by one step of bfloat16
        are_close([found], [expected], max(bound, 1e-12))


def test_a_checkpoint_without_the_shards_of_its_critic_is_not_committed(tmp_path: Path) -> None:
    target = tmp_path / "v3"
    manifest = MANIFEST.model_copy(update={"sharding": Sharding.RESHARDABLE})
    temporary = checkpoint.begin(target, 1)
    write_export(temporary)
    write_shards(temporary / "shards")
    with pytest.raises(TrainerFenced, match=r"critic/metadata.json was removed while it was"):
        checkpoint.commit(temporary, target, manifest, has_critic=True)
    write_shards(temporary / "critic")
    whole = checkpoint.commit(temporary, target, manifest, has_critic=True)
    assert whole.has_critic and checkpoint.read(target, ORIGIN).has_critic
    (target / "critic" / "common.pt").unlink()
    with pytest.raises(CheckpointUnusable, match=r"lacks its file critic/common.pt"):
        checkpoint.verify(target, whole)


def write_shards(folder: Path) -> None:
    folder.mkdir()
    for name in ("metadata.json", "common.pt"):
        (folder / name).write_bytes(b"shards")
