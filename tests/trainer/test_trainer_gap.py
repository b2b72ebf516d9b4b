"""The log-prob gap of a step: over which tokens, against which bounds, and when it is unknown."""

from dataclasses import replace

import numpy as np
import pytest

from mainspring.algorithms.gap import DEFAULT_BOUNDS, Dtype, GapBounds, measure
from mainspring.training.trained_rollouts import WORST_TOKENS, worst
from mainspring.training.training_faults import LogprobGapTooLarge
from mainspring.trajectories.samples import Sample
from trainer.process.rank import TrainerRank
from trainer.step.worst_gaps import worst_of


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


@pytest.mark.parametrize("proximal", ["served", "recomputed"])
def test_the_worst_tokens_are_told_with_both_numbers(
    make_model, make_config, served, proximal
) -> None:
    flat = next(n for n, sample in enumerate(served) if not sample.carries_advantage)
    kept = next(n for n, sample in enumerate(served) if sample.carries_advantage)
    wrong = list(served)
    places = {n: int(np.flatnonzero(served[n].action_mask)[-1]) for n in (flat, kept)}
    for (n, place), shift in zip(places.items(), (0.25, 0.5), strict=True):
        logprobs = served[n].logprobs.copy()
        logprobs[place] -= shift
        wrong[n] = replace(served[n], logprobs=logprobs)
    rank = TrainerRank(make_config(gap={"mode": "warn"}, proximal=proximal), make_model("qwen3")[1])
    metrics = rank.train_step(wrong, step=0, current_version=0)
    gaps = metrics.details.gaps
    assert len(gaps) == min(WORST_TOKENS, metrics.num_gap_tokens)
    assert [gap.size for gap in gaps] == sorted((gap.size for gap in gaps), reverse=True)
    assert gaps[0].size == pytest.approx(metrics.logprob_gap_max, abs=1e-6)
    for gap, n in zip(gaps, (kept, flat), strict=False):
        sample = wrong[n]
        assert (gap.rollout, gap.branch) == (sample.rollout, sample.branch)
        assert gap.position == places[n]
        assert gap.served == sample.logprobs[gap.position]
        assert gap.recomputed == pytest.approx(served[n].logprobs[gap.position], abs=1e-4)


def test_tokens_of_other_versions_and_beyond_the_bound_are_not_told() -> None:
    positions = np.ones(800, np.bool_)
    positions[::2] = False
    sample = Sample(
        rollout="r",
        branch=3,
        token_ids=np.zeros(800, np.int32),
        action_mask=positions,
        logprobs=np.zeros(800, np.float32),
        versions=np.where(np.arange(800) < 100, 4, 5).astype(np.int32),
        advantages=np.zeros(800, np.float32),
    )
    recomputed = np.linspace(-1.0, -0.01, 400, dtype=np.float32)
    recomputed[120] = np.nan
    of_old = worst_of([sample], recomputed, 4)
    assert sorted(gap.position for gap in of_old) == list(range(1, 100, 2))
    of_new = worst_of([sample], recomputed, 5)
    assert len(of_new) == WORST_TOKENS and min(gap.position for gap in of_new) == 101
    both = worst([*of_new, *of_old, *of_new])
    # What is no number is first; a token that two ranks compared counts once.
    assert [gap.position for gap in both[:3]] == [241, 1, 3]
    assert len({gap.position for gap in both}) == len(both) == WORST_TOKENS
    assert not worst_of([], np.zeros(0, np.float32), 5)


@pytest.mark.parametrize("changed", [{}, {"mini_batches": 2}, {"proximal": "recomputed"}])
def test_numbers_of_all_tokens_are_kept_and_move_nothing(
    make_model, make_config, served, changed
) -> None:
    directory = make_model("qwen3")[1]
    usual = TrainerRank(make_config(**changed), directory)
    keeping = TrainerRank(make_config(keep_recomputed=True, **changed), directory)
    expected = usual.logprobs(served)
    without = usual.train_step(served, step=0, current_version=0)
    metrics = keeping.train_step(served, step=0, current_version=0)
    assert metrics == replace(without, seconds=metrics.seconds) and not without.details.kept
    kept = metrics.details.kept
    assert sorted(kept) == list(range(len(served)))
    entropies = []
    for n, sample in enumerate(served):
        assert kept[n].logprobs == pytest.approx(expected[n][sample.action_mask], abs=1e-5)
        if sample.carries_advantage:
            entropies.append(kept[n].entropies)
        else:
            assert kept[n].entropies is None
    assert np.concatenate(entropies).mean() == pytest.approx(metrics.entropy, rel=1e-4)
    after = usual.logprobs(served)
    for n, logprobs in keeping.logprobs(served).items():
        assert np.array_equal(logprobs, after[n])  # the same weights, bit for bit
