"""Each loss, penalty and correction against a second, independent formula in float64."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mainspring.algorithms.choice import LOSSES, find_correction, find_loss
from mainspring.config.trainer import TrainerConfig
from mainspring.config.training.algorithm import Aggregation
from mainspring.config.training.kl import KlConfig, KlEstimator
from trainer.losses.aggregation import token_weights
from trainer.losses.kl import kl_of
from trainer.losses.protocol import ActionTokens

LOW, HIGH, DUAL, ENTROPY, LENGTH = 0.2, 0.28, 3.0, 0.01, 50


UNHURRIED = settings(deadline=None, max_examples=50)
"""The machine may be busy with other tests."""


@dataclass
class Rows:
    """Samples of a batch: log-probs in float64, advantages that are equal within a sample."""

    current: list[Tensor]
    proximal: list[Tensor]
    entropy: list[Tensor]
    advantages: list[float]


tenths = st.integers(-20, 20).map(lambda n: n / 10)
"""Log-ratios: no mean of a few of them is near the logarithm of a bound, where rounding decides."""


@st.composite
def rows(draw: st.DrawFn) -> Rows:
    found = Rows([], [], [], [])
    for length in draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)):
        of_length = {"min_size": length, "max_size": length}
        ratios = torch.tensor(draw(st.lists(tenths, **of_length)), dtype=torch.float64)
        proximal = torch.tensor(
            draw(st.lists(st.integers(-64, -1), **of_length)), dtype=torch.float64
        )
        found.proximal.append(proximal / 8)
        found.current.append((proximal / 8 + ratios).requires_grad_())
        found.entropy.append(torch.full((length,), 0.5, dtype=torch.float64).requires_grad_())
        found.advantages.append(draw(st.integers(-12, 12)) / 4)
    return found


Objective = Callable[[Tensor, Tensor, float], Tensor]
"""[T] of a sample, from its current and proximal log-probs and its advantage."""


def of_tokens(bounded: Callable[[Tensor, float], Tensor]) -> Objective:
    """A token's objective, from what its ratio may be at most or at least."""
    return lambda current, proximal, advantage: torch.stack(
        [bounded(ratio, advantage) * advantage for ratio in (current - proximal).exp()]
    )


def clip(ratio: Tensor, advantage: float) -> Tensor:
    return ratio.clamp(max=1 + HIGH) if advantage > 0 else ratio.clamp(min=1 - LOW)


def dual_clip(ratio: Tensor, advantage: float) -> Tensor:
    return clip(ratio, advantage) if advantage > 0 else ratio.clamp(1 - LOW, DUAL)


def cispo(current: Tensor, proximal: Tensor, advantage: float) -> Tensor:
    weights = [min(max(math.exp(d), 1 - LOW), 1 + HIGH) for d in (current - proximal).tolist()]
    return torch.stack([w * advantage * each for w, each in zip(weights, current, strict=True)])


def gspo(current: Tensor, proximal: Tensor, advantage: float) -> Tensor:
    """With the gradient through the whole sample's ratio, which each token then has a part of."""
    ratio = (current - proximal).mean().exp()
    return (clip(ratio, advantage) * advantage).expand(len(current))


FORMULAS: dict[str, Objective] = {
    "clip": of_tokens(clip),
    "dual_clip": of_tokens(dual_clip),
    "cispo": cispo,
    "gspo": gspo,
    "nll": lambda current, proximal, advantage: advantage * current,
}


def aggregated(losses: list[Tensor], aggregation: Aggregation) -> Tensor:
    match aggregation:
        case Aggregation.TOKEN_MEAN:
            return torch.cat(losses).mean()
        case Aggregation.SEQ_MEAN_TOKEN_MEAN:
            return torch.stack([each.mean() for each in losses]).mean()
        case Aggregation.SEQ_MEAN_TOKEN_SUM:
            return torch.stack([each.sum() for each in losses]).mean()
        case Aggregation.SEQ_MEAN_TOKEN_SUM_NORM:
            return torch.stack([each.sum() / LENGTH for each in losses]).mean()


def gradient_of(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.grad for part in parts if part.grad is not None])


def test_every_loss_has_a_formula_here() -> None:
    assert FORMULAS.keys() == LOSSES.keys()


@pytest.mark.parametrize("aggregation", list(Aggregation))
@pytest.mark.parametrize("name", list(FORMULAS))
@UNHURRIED
@given(batch=rows())
def test_a_loss_and_its_gradient_equal_the_formula(
    name: str, aggregation: Aggregation, batch: Rows
) -> None:
    trainer = TrainerConfig(
        loss=name,
        clip_low=LOW,
        clip_high=HIGH,
        dual_clip=DUAL,
        entropy_coef=ENTROPY,
        aggregation=aggregation,
        aggregation_length=LENGTH,
    )
    triples = zip(batch.current, batch.proximal, batch.advantages, strict=True)
    losses = [
        -FORMULAS[name](*each) - ENTROPY * entropy
        for each, entropy in zip(triples, batch.entropy, strict=True)
    ]
    expected = aggregated(losses, aggregation)
    expected.backward()
    gradients = [
        torch.cat([each.grad for each in found]) for found in (batch.current, batch.entropy)
    ]

    lengths = [len(each) for each in batch.current]
    weights = token_weights(aggregation, lengths, LENGTH)
    logprobs = [each.detach().float().requires_grad_() for each in batch.current]
    entropies = [each.detach().float().requires_grad_() for each in batch.entropy]
    total = 0.0
    for cut in (slice(0, 1), slice(1, None)):  # two micro-batches, the second of several samples
        if not lengths[cut]:
            continue
        tokens = ActionTokens(
            logprobs=torch.cat(logprobs[cut]),
            entropy=torch.cat(entropies[cut]),
            served_logprobs=torch.zeros(sum(lengths[cut])),
            proximal_logprobs=torch.cat(batch.proximal[cut]).float(),
            advantages=torch.tensor(batch.advantages[cut]).repeat_interleave(
                torch.tensor(lengths[cut])
            ),
            weights=torch.tensor(weights[cut]).repeat_interleave(torch.tensor(lengths[cut])),
            num_tokens_N=lengths[cut],
        )
        found = find_loss(trainer)(tokens, trainer)
        found.loss.backward()
        total += found.loss.item()
    scale = 1 if aggregation is not Aggregation.SEQ_MEAN_TOKEN_SUM else sum(lengths)
    assert total == pytest.approx(expected.item(), abs=1e-5 * scale)
    for mine, other in zip((logprobs, entropies), gradients, strict=True):
        assert (gradient_of(mine) - other.float()).abs().max() < 1e-5


def test_what_each_bound_cut_is_counted_by_itself() -> None:
    ratios = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.0, 4.0])
    tokens = ActionTokens(
        logprobs=ratios.log().requires_grad_(),
        entropy=torch.zeros(6),
        served_logprobs=torch.zeros(6),
        proximal_logprobs=torch.zeros(6),
        advantages=torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0, -1.0]),
        weights=torch.full((6,), 1 / 6),
        num_tokens_N=[4, 2],
    )

    def sums(name: str) -> dict[str, float]:
        trainer = TrainerConfig(loss=name, clip_low=0.2, clip_high=0.28)
        return {
            key: float(value) for key, value in find_loss(trainer)(tokens, trainer).sums.items()
        }

    one_each = {"clip_fraction": 2, "clip_fraction_low": 1, "clip_fraction_high": 1}
    assert sums("clip") == one_each
    assert sums("dual_clip") == one_each | {"clip_fraction": 3, "clip_fraction_dual": 1}
    assert sums("cispo") == {"clip_fraction": 5, "clip_fraction_low": 2, "clip_fraction_high": 3}
    # the first sample's ratio is 0.87; the second's is 2, which cuts its token of advantage 2
    assert sums("gspo") == {"clip_fraction": 1, "clip_fraction_low": 0, "clip_fraction_high": 1}


@pytest.mark.parametrize("estimator", list(KlEstimator))
@UNHURRIED
@given(differences=st.lists(st.integers(-400, 400).map(lambda n: n / 64), min_size=1, max_size=6))
def test_an_estimate_of_the_divergence_and_its_gradient(
    estimator: KlEstimator, differences: list[float]
) -> None:
    clamp = 5.03  # which no estimate is near
    current = torch.tensor(differences, dtype=torch.float64, requires_grad=True)
    ratio = 1 / current.exp()  # of the reference, whose log-probs are 0, to the policy
    exact = {
        KlEstimator.K1: -ratio.log(),
        KlEstimator.K2: ratio.log() ** 2 / 2,
        KlEstimator.K3: ratio - 1 - ratio.log(),
    }[estimator]
    expected = exact.minimum(torch.tensor(clamp)).maximum(torch.tensor(-clamp))
    expected.sum().backward()
    logprobs = torch.tensor(differences, requires_grad=True)
    config = KlConfig(estimator=estimator, clamp=clamp)
    found = kl_of(logprobs, torch.zeros(len(differences)), config)
    found.sum().backward()
    assert (found - expected.float()).abs().max() < 1e-5
    assert current.grad is not None and logprobs.grad is not None
    assert (logprobs.grad - current.grad.float()).abs().max() < 1e-5


def test_the_largest_difference_has_a_finite_estimate_and_gradient() -> None:
    logprobs = torch.tensor([-500.0, -1e-7, 0.0], requires_grad=True)
    found = kl_of(logprobs, torch.tensor([0.0, -500.0, 0.0]), KlConfig())
    found.sum().backward()
    assert found.tolist() == [10.0, 10.0, 0.0]
    assert logprobs.grad is not None and logprobs.grad.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("kind", ["tis", "icepop", "sequence_mask"])
@UNHURRIED
@given(log_ratios=st.lists(tenths, min_size=1, max_size=6))
def test_a_correction_cuts_what_is_outside_of_its_bounds(
    kind: str, log_ratios: list[float]
) -> None:
    trainer = TrainerConfig.model_validate(
        {"proximal": "recomputed", "correction": {"kind": kind, "low": 0.6, "high": 2.5}}
    )
    found = find_correction(trainer)(torch.tensor(log_ratios), trainer.correction)
    ratios = [math.exp(each) for each in log_ratios]
    mean = math.prod(ratios) ** (1 / len(ratios))
    inside = [0.6 <= each <= 2.5 for each in ratios]
    match kind:
        case "tis":
            expected = [min(max(each, 0.6), 2.5) for each in ratios]
        case "icepop":
            expected = [each if kept else 0 for each, kept in zip(ratios, inside, strict=True)]
        case _:
            inside = [0.6 <= mean <= 2.5] * len(ratios)
            expected = [float(kept) for kept in inside]
    assert found.factors.tolist() == pytest.approx(expected, rel=1e-5)
    assert found.is_cut.tolist() == [not kept for kept in inside]


def test_each_correction_has_bounds_of_its_own() -> None:
    def bounds(**fields: object) -> tuple[float, float]:
        raw = {"proximal": "recomputed", "correction": fields}
        return TrainerConfig.model_validate(raw).correction.bounds

    assert bounds(kind="tis") == (0, 2)
    assert bounds(kind="icepop") == (0.5, 5)
    assert bounds(kind="icepop", high=4) == (0.5, 4)
    assert bounds(kind="sequence_mask", low=0.5) == (0.5, 1.1)
    assert bounds(kind="own:correction") == (0, math.inf)
