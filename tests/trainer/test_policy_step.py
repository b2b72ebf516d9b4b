"""A step's passes, mini-batches, proximal log-probs and corrections, on a real rank."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mainspring.algorithms.choice import LOSSES
from mainspring.config.training.algorithm import Aggregation
from mainspring.training.step_metrics import PASS_NAMES
from mainspring.training.training_faults import AlgorithmBroken, LogprobGapTooLarge
from mainspring.trajectories.samples import Sample
from tests.trainer.conftest import largest_gap, weights_of
from trainer.corrections.protocol import Corrected
from trainer.losses.clip import clip
from trainer.losses.protocol import LossOutput
from trainer.process.driver import TrainerDriver
from trainer.process.rank import TrainerRank

RECOMPUTED = {"proximal": "recomputed"}


def served_by(rank: TrainerRank, batch: list[Sample]) -> list[Sample]:
    """As an engine that computes what the rank computes would have sampled them."""
    logprobs = rank.logprobs(batch)
    return [replace(sample, logprobs=logprobs[n]) for n, sample in enumerate(batch)]


@pytest.fixture(scope="module")
def directory(make_model) -> Path:
    return make_model("qwen3")[1]


@pytest.mark.parametrize("aggregation", list(Aggregation))
@pytest.mark.parametrize("loss", list(LOSSES))
def test_micro_batches_change_nothing(loss, aggregation, directory, make_config, batch) -> None:
    found = []
    for tokens in (64, 8192):
        config = make_config(
            loss=loss,
            aggregation=aggregation,
            aggregation_length=64,
            entropy_coef=0.01,
            micro_batch_tokens=tokens,
            correction={"kind": "sequence_mask", "low": 0.8, "high": 1.2},
            kl={"coef": 0.1},
            **RECOMPUTED,
        )
        rank = TrainerRank(config, directory)
        rank.train_step(batch, step=0, current_version=0)
        found.append(rank.train_step(batch, step=1, current_version=0))
    one, other = found
    assert one.num_tokens == other.num_tokens and one.values.keys() == other.values.keys()
    assert one.loss == pytest.approx(other.loss, rel=1e-3, abs=1e-4)
    assert one.grad_norm == pytest.approx(other.grad_norm, rel=1e-3)
    for name, value in one.values.items():
        assert value == pytest.approx(other.values[name], abs=1e-4), name


def test_recomputed_log_probs_of_an_honest_engine_change_no_bit(
    directory, make_config, batch, tmp_path
) -> None:
    found = []
    for n, fields in enumerate(({}, RECOMPUTED, RECOMPUTED | {"correction": {"kind": "tis"}})):
        rank = TrainerRank(make_config(updates_per_step=2, **fields), directory)
        metrics = rank.train_step(served_by(rank, batch), step=0, current_version=0)
        found.append((metrics, weights_of(rank, tmp_path / str(n))))
    (served, weights), *others = found
    for metrics, other in others:
        values = dict(metrics.values)
        assert values.pop("correction_cut", 0.0) == 0.0
        assert replace(metrics, values=values, seconds=0.0) == replace(served, seconds=0.0)
        assert largest_gap(weights, other) == 0.0


def test_the_ratio_is_against_the_weights_that_the_step_began_with(
    directory, make_config, batch
) -> None:
    assert (
        TrainerRank(make_config(), directory)
        .train_step(batch, step=0, current_version=0)
        .values["clip_fraction"]
    )  # of log-probs that no engine served
    rank = TrainerRank(make_config(**RECOMPUTED), directory)
    once = rank.train_step(batch, step=0, current_version=0)
    assert once.values["clip_fraction"] == 0.0
    advantages = np.concatenate([s.advantages[s.action_mask] for s in batch if s.carries_advantage])
    assert once.loss == pytest.approx(-float(advantages.mean()), abs=1e-6)
    # what is measured against the engine still is
    assert once.kl is not None and once.kl > 1e-3
    twice = TrainerRank(
        make_config(updates_per_step=3, optimizer={"lr": 0.05}, **RECOMPUTED), directory
    )
    assert twice.train_step(batch, step=0, current_version=0).values["clip_fraction"] > 0


@pytest.mark.parametrize("fields", [{}, RECOMPUTED])
def test_mini_batches_equal_an_update_on_each_part(
    fields, directory, make_config, batch, tmp_path
) -> None:
    kept = [sample for sample in batch if sample.carries_advantage]
    apart = TrainerRank(make_config(), directory)
    first_weights = served_by(apart, kept) if fields else kept
    parts = [first_weights[start::3] for start in range(3)]
    steps = [apart.train_step(part, step=2, current_version=0) for part in parts]
    together = TrainerRank(make_config(mini_batches=3, **fields), directory)
    found = together.train_step(batch, step=2, current_version=0)
    a, b = weights_of(apart, tmp_path / "apart"), weights_of(together, tmp_path / "together")
    assert largest_gap(a, b) == 0.0
    assert found.num_tokens == sum(each.num_tokens for each in steps)
    assert found.loss == pytest.approx(sum(each.loss for each in steps) / 3, abs=1e-6)
    assert found.grad_norm == pytest.approx(sum(each.grad_norm for each in steps) / 3)
    for name, value in found.values.items():
        mean = sum(each.values[name] * each.num_tokens for each in steps) / found.num_tokens
        assert value == pytest.approx(mean, abs=1e-7)
    # the gap is of all tokens under the weights that the step begins with
    usual = TrainerRank(make_config(), directory).train_step(batch, step=2, current_version=0)
    assert found.num_gap_tokens == usual.num_gap_tokens
    assert found.logprob_gap_mean == pytest.approx(usual.logprob_gap_mean, rel=1e-5)


def test_more_mini_batches_than_samples_with_advantage(directory, make_config, batch) -> None:
    kept = [sample for sample in batch if sample.carries_advantage]
    many = TrainerRank(make_config(mini_batches=50), directory)
    exact = TrainerRank(make_config(mini_batches=len(kept)), directory)
    steps = [each.train_step(batch, step=0, current_version=0) for each in (many, exact)]
    assert replace(steps[0], seconds=0.0) == replace(steps[1], seconds=0.0)


@pytest.mark.parametrize("fields", [{"mini_batches": 3}, RECOMPUTED])
def test_a_gap_in_the_last_mini_batch_moves_nothing(fields, directory, make_config, batch) -> None:
    rank = TrainerRank(make_config(gap={}, **fields), directory)
    served = served_by(rank, batch)
    wrong = [*served[:-1], replace(served[-1], logprobs=served[-1].logprobs - 1)]
    with pytest.raises(LogprobGapTooLarge, match="step 1"):
        rank.train_step(wrong, step=0, current_version=int(served[-1].versions.max()))
    after = served_by(rank, batch)
    assert all(np.array_equal(a.logprobs, b.logprobs) for a, b in zip(served, after, strict=True))


@pytest.mark.parametrize("kind", ["tis", "icepop", "sequence_mask"])
def test_a_correction_is_of_recomputed_against_served_log_probs(
    kind, directory, make_config, batch
) -> None:
    """By hand: the advantages, multiplied, in a step without a correction."""
    low, high = (0.95, 1.05) if kind == "sequence_mask" else (0.9, 1.2)
    config = make_config(
        **RECOMPUTED, correction={"kind": kind, "low": low, "high": high}, micro_batch_tokens=64
    )
    rank = TrainerRank(config, directory)
    recomputed = rank.logprobs(batch)
    by_hand, num_cut, num_tokens = [], 0, 0
    for n, sample in enumerate(batch):
        mask = sample.action_mask
        ratios = np.exp((recomputed[n] - sample.logprobs)[mask].astype(np.float64))
        mean = math.exp(np.log(ratios).mean())
        inside = (low <= ratios) & (ratios <= high)
        if kind == "sequence_mask":
            inside = np.full(len(ratios), low <= mean <= high)
        factors = {
            "tis": np.clip(ratios, low, high),
            "icepop": np.where(inside, ratios, 0),
            "sequence_mask": inside.astype(float),
        }[kind]
        advantages = sample.advantages.copy()
        advantages[mask] *= factors
        # a sample that is cut stays in the denominator: it needs an advantage that is not 0
        advantages[mask] += np.where(sample.carries_advantage & (advantages[mask] == 0), 1e-20, 0)
        by_hand.append(replace(sample, advantages=advantages))
        if sample.carries_advantage:
            num_cut += int((~inside).sum())
            num_tokens += len(ratios)
    found = rank.train_step(batch, step=0, current_version=0)
    plain = make_config(**RECOMPUTED, micro_batch_tokens=64)
    expected = TrainerRank(plain, directory).train_step(by_hand, step=0, current_version=0)
    assert 0 < num_cut < num_tokens
    assert found.values["correction_cut"] == pytest.approx(num_cut / num_tokens)
    assert found.loss == pytest.approx(expected.loss, abs=1e-6)
    assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-5)


def raises(log_ratio, correction):
    raise ArithmeticError("no")


def no_corrected(log_ratio, correction):
    return log_ratio.exp()


def too_short(log_ratio, correction):
    return Corrected(log_ratio[1:], log_ratio > 0)


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("raises", "raised ArithmeticError: no"),
        ("no_corrected", "returned a Tensor, expected a Corrected"),
        ("too_short", "returned factors of shape"),
    ],
)
def test_what_is_no_correction_moves_nothing(
    function, problem, directory, make_config, batch
) -> None:
    kind = f"{__name__}:{function}"
    rank = TrainerRank(make_config(**RECOMPUTED, correction={"kind": kind}), directory)
    before = rank.logprobs(batch)
    with pytest.raises(AlgorithmBroken, match=f"trainer.correction.kind '.*' {problem}"):
        rank.train_step(batch, step=0, current_version=0)
    after = rank.logprobs(batch)
    assert all(np.array_equal(before[n], after[n]) for n in before)


@pytest.mark.parametrize("name", sorted(PASS_NAMES))
def test_a_loss_takes_no_name_of_the_pass(name, directory, make_config, batch) -> None:
    rank = TrainerRank(make_config(), directory)
    rank._loss = lambda tokens, trainer: LossOutput(clip(tokens, trainer).loss, {name: 1.0})
    with pytest.raises(AlgorithmBroken, match=f"names a sum '{name}'"):
        rank.train_step(batch, step=0, current_version=0)


async def test_two_data_parallel_ranks_have_the_same_shares_in_every_pass(
    driver: TrainerDriver, directory, make_config, batch
) -> None:
    """Recomputed log-probs are by index of a rank's share: of another share they would be wrong."""
    fields = RECOMPUTED | {
        "mini_batches": 2,
        "updates_per_step": 2,
        "correction": {"kind": "icepop", "low": 0.9, "high": 1.2},
        "kl": {"coef": 0.1},
        "micro_batch_tokens": 64,
    }
    driver.start(make_config(**fields, data_parallel=2), directory)
    alone = TrainerRank(make_config(**fields), directory)
    for step in range(2):
        one = alone.train_step(batch, step=step, current_version=0)
        two = driver.train_step(batch, step=step, current_version=0)
        assert two.loss == pytest.approx(one.loss, abs=1e-5)
        assert two.grad_norm == pytest.approx(one.grad_norm, rel=1e-3)
        assert two.logprob_gap_mean == pytest.approx(one.logprob_gap_mean, rel=1e-4)
        for name, value in one.values.items():
            assert two.values[name] == pytest.approx(value, abs=1e-4), name
