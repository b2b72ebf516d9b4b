"""Losses, penalties and corrections at the edge: finite for every finite input, and the same bits
as the plain formula wherever that is a number."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mainspring.algorithms.choice import LOSSES, find_correction, find_loss
from mainspring.config.trainer import TrainerConfig
from mainspring.config.training.kl import KlConfig, KlEstimator
from trainer.losses.kl import kl_of
from trainer.losses.objective import MAX_LOG_RATIO, bounded, ratio_of
from trainer.losses.protocol import ActionTokens

EDGES = (0.0, -1e-7, -1.0, -19.0, -20.0, -21.0, -88.0, -89.0, -100.0, -1e4, -3e38)
"""Log-probs; exp(88.8) is the first that float32 has not."""
ADVANTAGES = (1.0, -1.0, 0.0, 1e3, -1e3)
CORRECTIONS = ("tis", "icepop", "sequence_mask")


def tokens_of(logprobs: Tensor, proximal: Tensor, advantage: float) -> ActionTokens:
    number = len(logprobs)
    return ActionTokens(
        logprobs=logprobs,
        entropy=torch.zeros(number),
        served_logprobs=proximal,
        proximal_logprobs=proximal,
        advantages=torch.full((number,), advantage),
        weights=torch.full((number,), 1 / number),
        num_tokens_N=[number],
    )


@pytest.mark.parametrize("name", list(LOSSES))
def test_every_loss_has_a_finite_gradient_for_every_pair_of_log_probs(name: str) -> None:
    trainer = TrainerConfig(loss=name)
    for mine, theirs, advantage in itertools.product(EDGES, EDGES, ADVANTAGES):
        if name == "nll" and mine < -1e30:
            continue  # a loss without a ratio: the log-prob itself, times 1000
        for others in ((), (-1.0,)):  # alone, and beside an honest token of its sample
            logprobs = torch.tensor([mine, *others], requires_grad=True)
            tokens = tokens_of(logprobs, torch.tensor([theirs, *others]), advantage)
            loss = find_loss(trainer)(tokens, trainer).loss
            loss.backward()
            assert logprobs.grad is not None
            where = f"{name}: {mine}, {theirs}, {advantage}: {loss.item()}, {logprobs.grad}"
            assert logprobs.grad.isfinite().all(), where
            if name != "cispo" or mine > -1e30:
                assert loss.isfinite(), where


@pytest.mark.parametrize("name", ["clip", "dual_clip"])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_the_smallest_input_whose_gradient_was_not_a_number(name: str, advantage: float) -> None:
    logprobs = torch.tensor([-1.0], requires_grad=True)
    tokens = tokens_of(logprobs, torch.tensor([-101.0]), advantage)
    trainer = TrainerConfig(loss=name)
    found = find_loss(trainer)(tokens, trainer)
    found.loss.backward()
    assert logprobs.grad is not None and logprobs.grad.tolist() == [0.0]
    if advantage > 0:
        assert found.loss.item() == pytest.approx(-1.28)
    elif name == "dual_clip":
        assert found.loss.item() == pytest.approx(3.0)


@pytest.mark.parametrize("estimator", list(KlEstimator))
@pytest.mark.parametrize("clamp", [None, 10.0, 1e-3])
def test_every_penalty_is_finite(estimator: KlEstimator, clamp: float | None) -> None:
    pairs = list(itertools.product(EDGES, EDGES))
    logprobs = torch.tensor([mine for mine, _ in pairs], requires_grad=True)
    reference = torch.tensor([theirs for _, theirs in pairs])
    found = kl_of(logprobs, reference, KlConfig(estimator=estimator, clamp=clamp))
    found.sum().backward()
    assert logprobs.grad is not None
    assert found.isfinite().all() and logprobs.grad.isfinite().all()


@pytest.mark.parametrize("kind", CORRECTIONS)
def test_every_correction_has_finite_factors(kind: str) -> None:
    raw = {"proximal": "recomputed", "correction": {"kind": kind}}
    trainer = TrainerConfig.model_validate(raw)
    for mine, theirs in itertools.product(EDGES, EDGES):
        found = find_correction(trainer)(torch.tensor([mine - theirs, 0.0]), trainer.correction)
        assert found.factors.isfinite().all(), (kind, mine, theirs)
        assert (found.factors >= 0).all()


def _plain(function: Callable[[Tensor], Tensor], difference: Tensor) -> tuple[Tensor, Tensor]:
    leaf = difference.clone().requires_grad_()
    found = function(leaf)
    found.sum().backward()
    assert leaf.grad is not None
    return found.detach(), leaf.grad


def test_within_the_bound_value_and_gradient_have_the_bits_of_the_plain_ratio() -> None:
    differences = torch.linspace(-MAX_LOG_RATIO, MAX_LOG_RATIO, 20_001)
    value, gradient = _plain(lambda d: ratio_of(d, torch.zeros(())), differences)
    expected, its_gradient = _plain(torch.exp, differences)
    assert torch.equal(value, expected) and torch.equal(gradient, its_gradient)
    beyond = torch.tensor([MAX_LOG_RATIO + 1, -MAX_LOG_RATIO - 1, 3e38, float("inf")])
    value, gradient = _plain(lambda d: bounded(d).exp(), beyond)
    assert value.isfinite().all() and not gradient.any()
