"""What a step reports of its loss and of its cost, on a real rank."""

from pathlib import Path

import numpy as np
import pytest

from mainspring.planning.model_flops import model_flops
from mainspring.planning.model_shape import read_shape
from trainer.process.rank import TrainerRank


@pytest.fixture(scope="module")
def directory(make_model) -> Path:
    return make_model("qwen3")[1]


@pytest.mark.parametrize("mini_batches", [1, 3])
def test_the_parts_of_the_loss_add_up(mini_batches, directory, make_config, batch) -> None:
    config = make_config(
        kl={"coef": 0.1}, entropy_coef=0.01, mini_batches=mini_batches, micro_batch_tokens=64
    )
    rank = TrainerRank(config, directory)
    first = rank.train_step(batch, step=0, current_version=0)
    second = rank.train_step(batch, step=1, current_version=0)
    if mini_batches == 1:
        assert first.loss_kl == pytest.approx(0.0, abs=1e-7), "it is the reference"
        assert second.loss_kl == pytest.approx(0.1 * second.values["kl_reference"], rel=1e-4)
        assert second.loss_entropy == pytest.approx(-0.01 * second.entropy, rel=1e-4)
    assert second.loss_kl > 0 > second.loss_entropy
    parts = second.loss_policy + second.loss_kl + second.loss_entropy
    assert parts == pytest.approx(second.loss, abs=1e-6)


def test_a_part_that_the_loss_lacks_is_none(directory, make_config, batch) -> None:
    plain = TrainerRank(make_config(), directory).train_step(batch, step=0, current_version=0)
    assert (plain.loss_kl, plain.loss_entropy) == (None, None)
    assert plain.loss_policy == plain.loss
    in_reward = make_config(kl={"coef": 0.1, "where": "reward"})
    found = TrainerRank(in_reward, directory).train_step(batch, step=0, current_version=0)
    assert found.loss_kl is None and found.values["kl_reference"] is not None


def test_clipped_tokens_are_below_or_above(directory, make_config, batch) -> None:
    values = (
        TrainerRank(make_config(), directory).train_step(batch, step=0, current_version=0).values
    )
    low, high = values["clip_fraction_low"], values["clip_fraction_high"]
    assert low > 0 and high > 0
    assert low + high == pytest.approx(values["clip_fraction"])


def test_the_cost_of_a_step_is_counted(directory, make_config, batch) -> None:
    kept = [sample for sample in batch if sample.carries_advantage]
    lengths = [len(sample.token_ids) - 1 for sample in kept]
    once = TrainerRank(make_config(), directory).train_step(batch, step=0, current_version=0)
    twice = TrainerRank(make_config(updates_per_step=2, peak_tflops=0.5), directory).train_step(
        batch, step=0, current_version=0
    )
    assert once.num_trained_tokens == sum(lengths) > once.num_tokens
    assert twice.num_trained_tokens == 2 * sum(lengths)
    num_wanted = sum(sample.num_action_tokens for sample in kept)
    assert once.flops == model_flops(read_shape(directory), lengths, num_wanted)
    assert twice.flops == 2 * once.flops
    # no peak of a CPU is known, and none is invented
    assert (once.peak_flops, once.mfu, once.figures["mfu"]) == (None, None, None)
    assert twice.figures["mfu"] == pytest.approx(twice.flops / (twice.seconds * 0.5e12))
    assert once.figures["tokens_per_s"] == pytest.approx(sum(lengths) / once.seconds)
    assert once.figures["compute_s"] == once.seconds
    assert 0.01 < once.rank_memory_peak_gib < 100
    assert "flops" not in once.figures and "peak_flops" not in once.figures


def test_quantiles_of_the_gap_are_in_order(directory, make_config, batch) -> None:
    found = TrainerRank(make_config(), directory).train_step(batch, step=0, current_version=0)
    names = ("p50", "p99", "p999", "max")
    gaps = [getattr(found, f"logprob_gap_{name}") for name in names]
    assert gaps == sorted(gaps) and gaps[0] < found.logprob_gap_mean * 2
    assert np.isfinite(gaps).all() and found.gap.p50 == gaps[0]


def test_a_step_without_advantage_has_no_parts(directory, make_config, batch) -> None:
    flat = [sample for sample in batch if not sample.carries_advantage]
    found = TrainerRank(make_config(), directory).train_step(flat, step=0, current_version=0)
    assert (found.loss, found.loss_policy, found.num_trained_tokens) == (None, None, 0)
    assert found.figures["tokens_per_s"] == 0 and found.figures["mfu"] is None
