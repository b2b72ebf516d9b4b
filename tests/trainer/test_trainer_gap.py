"""The log-prob gap of a step: over which tokens, against which bounds, and when it is unknown."""

from dataclasses import replace

import numpy as np
import pytest

from mainspring.algorithms.gap import DEFAULT_BOUNDS, Dtype, GapBounds, measure
from mainspring.training.training_faults import LogprobGapTooLarge
from trainer.process.rank import TrainerRank


@pytest.fixture
def served(make_model, make_config, batch):
    """The batch as an honest float32 engine serves it, all under version 0."""
    rank = TrainerRank(make_config(), make_model("qwen3")[1])
    logprobs = rank.logprobs(batch)
    return [
        replace(s, logprobs=logprobs[n], versions=np.where(s.action_mask, 0, -1).astype(np.int32))
        for n, s in enumerate(batch)
    ]


def test_a_wrong_token_of_a_flat_sample_is_seen(make_model, make_config, served) -> None:
    rank = TrainerRank(make_config(gap={}), make_model("qwen3")[1])
    flat = next(n for n, sample in enumerate(served) if not sample.carries_advantage)
    wrong = list(served)
    wrong[flat] = replace(
        served[flat], logprobs=served[flat].logprobs - 0.5 * served[flat].action_mask
    )
    assert rank.train_step(served, step=0, current_version=0).logprob_gap_max < 1e-5
    with pytest.raises(LogprobGapTooLarge, match=r"max 5\.00e-01 \(at most 1e-03\)"):
        TrainerRank(make_config(gap={}), make_model("qwen3")[1]).train_step(
            wrong, step=0, current_version=0
        )


def test_an_honest_bfloat16_engine_passes_its_bounds_and_a_wrong_one_does_not(
    make_model, make_config, served
) -> None:
    # as measured on a real one: mean 0.033 over all tokens, tails to 0.27
    rng = np.random.default_rng(3)
    noisy = [
        replace(s, logprobs=s.logprobs + (0.041 * rng.standard_normal(len(s.logprobs))))
        for s in served
    ]
    directory = make_model("qwen3")[1]
    bfloat16 = make_config(gap={}).model_copy(
        update={"policy": make_config().policy.model_copy(update={"dtype": Dtype.BFLOAT16})}
    )
    metrics = TrainerRank(bfloat16, directory).train_step(noisy, step=0, current_version=0)
    assert 0.02 < metrics.logprob_gap_mean < 0.05
    with pytest.raises(LogprobGapTooLarge):
        TrainerRank(make_config(gap={}), directory).train_step(noisy, step=0, current_version=0)
    other = [replace(s, logprobs=s.logprobs - 0.2 * s.action_mask) for s in noisy]
    with pytest.raises(LogprobGapTooLarge, match=r"mean .* \(at most 5e-02\)"):
        TrainerRank(bfloat16, directory).train_step(other, step=0, current_version=0)


def test_warn_records_the_gap_and_trains(make_model, make_config, served) -> None:
    wrong = [replace(s, logprobs=s.logprobs - 0.2 * s.action_mask) for s in served]
    rank = TrainerRank(make_config(gap={"mode": "warn"}), make_model("qwen3")[1])
    metrics = rank.train_step(wrong, step=0, current_version=0)
    assert metrics.logprob_gap_max == pytest.approx(0.2, abs=1e-4)
    assert metrics.grad_norm > 0
    assert metrics.gap.beyond(GapBounds(max=1e-3))


def test_a_gap_over_no_token_is_unknown(make_model, make_config, served) -> None:
    rank = TrainerRank(make_config(gap={}), make_model("qwen3")[1])
    metrics = rank.train_step(served, step=5, current_version=5)
    assert metrics.num_gap_tokens == 0
    assert (metrics.logprob_gap_max, metrics.logprob_gap_mean) == (None, None)
    assert (metrics.logprob_gap_p999, metrics.logprob_gap_k3) == (None, None)


def test_what_is_not_a_number_exceeds_every_bound() -> None:
    broken = measure(np.array([0.0, np.nan, -np.inf], np.float32))
    assert len(broken.beyond(GapBounds(max=1.0, mean=1.0, p999=1.0, k3=1.0))) == 4
    for bounds in DEFAULT_BOUNDS.values():
        assert broken.beyond(bounds)
        assert not measure(np.zeros(3)).beyond(bounds)
