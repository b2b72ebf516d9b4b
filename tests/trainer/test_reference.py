"""The KL penalty on a real rank: against which weights, where it counts, and what it leaves."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from mainspring.errors import ModelError
from mainspring.trajectories.samples import Sample
from tests.trainer.conftest import largest_gap, weights_of
from trainer.process.rank import TrainerRank
from trainer.step.reference import Reference

RECOMPUTED = {"proximal": "recomputed"}


def divergences(
    logprobs: dict[int, np.ndarray], reference: dict[int, np.ndarray], batch: list[Sample]
) -> dict[int, np.ndarray]:
    """k3 of each token, by hand."""
    found = {}
    for n, sample in enumerate(batch):
        difference = (reference[n] - logprobs[n]).astype(np.float64)
        found[n] = np.where(sample.action_mask, np.exp(difference) - 1 - difference, 0)
    return found


def mean_of(found: dict[int, np.ndarray], batch: list[Sample]) -> float:
    kept = [n for n, sample in enumerate(batch) if sample.carries_advantage]
    return sum(found[n].sum() for n in kept) / sum(batch[n].num_action_tokens for n in kept)


def test_the_reference_is_what_the_rank_was_built_with_until_it_keeps_another(
    make_model, make_config, batch
) -> None:
    config = make_config(kl={"coef": 0.1})
    rank = TrainerRank(config, make_model("qwen3")[1])
    base = rank.logprobs(batch)
    first = rank.train_step(batch, step=0, current_version=0)
    assert first.values["kl_reference"] == 0.0
    expected = mean_of(divergences(rank.logprobs(batch), base, batch), batch)
    second = rank.train_step(batch, step=1, current_version=0)
    assert expected > 1e-3
    assert second.values["kl_reference"] == pytest.approx(expected, rel=1e-4)
    rank.keep_reference()
    third = rank.train_step(batch, step=2, current_version=0)
    assert third.values["kl_reference"] == 0.0


def test_the_penalty_in_the_loss_equals_hugging_face(make_model, make_config, batch, oracle):
    model, directory = make_model("qwen3")
    coef = 0.7
    rank = TrainerRank(make_config(kl={"coef": coef}), directory)
    base = rank.logprobs(batch)
    rank.train_step(batch, step=0, current_version=0)
    with torch.no_grad():  # the weights that the second step begins with
        for name, weight in weights_of(rank, directory.parent / "moved").items():
            dict(model.named_parameters())[name].copy_(weight)
    total, num_tokens = torch.zeros(()), 0
    for n, sample in enumerate(batch):
        if not sample.carries_advantage:
            continue
        mask = torch.from_numpy(sample.action_mask[1:])
        logprobs = oracle(model, sample)[mask]
        ratio = (logprobs - torch.from_numpy(sample.logprobs[1:])[mask]).exp()
        advantages = torch.from_numpy(sample.advantages[1:])[mask]
        clipped = ratio.clamp(0.8, 1.28) * advantages
        difference = torch.from_numpy(base[n][1:])[mask] - logprobs
        divergence = difference.exp() - 1 - difference
        total = total + (coef * divergence - torch.minimum(ratio * advantages, clipped)).sum()
        num_tokens += len(logprobs)
    loss = total / num_tokens
    model.zero_grad()
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
    found = rank.train_step(batch, step=1, current_version=0)
    assert found.loss == pytest.approx(loss.item(), abs=1e-5)
    assert found.grad_norm == pytest.approx(norm.item(), rel=1e-4)


@pytest.mark.parametrize("fields", [{}, RECOMPUTED])
def test_the_penalty_in_the_reward_is_subtracted_from_advantages(
    fields, make_model, make_config, batch
) -> None:
    """Of the log-probs that the ratio is against: the served ones, or those recomputed. Each token
    pays for itself and for all action tokens after it."""

    def to_come(values: np.ndarray, sample: Sample) -> np.ndarray:
        sums = [values[t:].sum() for t in range(len(values))]
        return np.where(sample.action_mask, sums, 0)

    directory, coef = make_model("qwen3")[1], 0.5
    kl = {"coef": coef, "where": "reward", "estimator": "k3", "clamp": 1000.0}
    rank = TrainerRank(make_config(kl=kl, **fields), directory)
    base = rank.logprobs(batch)
    rank.train_step(batch, step=0, current_version=0)
    old = rank.logprobs(batch) if fields else {n: s.logprobs for n, s in enumerate(batch)}
    found = divergences(old, base, batch)
    by_hand = [
        replace(s, advantages=(s.advantages - coef * to_come(found[n], s)).astype(np.float32))
        if s.carries_advantage
        else s
        for n, s in enumerate(batch)
    ]
    plain = TrainerRank(make_config(**fields), directory)
    plain._weights.take(rank._weights.named())
    expected = plain.train_step(by_hand, step=1, current_version=0)
    penalised = rank.train_step(batch, step=1, current_version=0)
    assert mean_of(found, batch) > 1e-3
    assert penalised.loss == pytest.approx(expected.loss, abs=1e-5)
    assert penalised.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4)


def test_a_penalty_without_weight_costs_nothing_and_names_nothing(
    make_model, make_config, batch
) -> None:
    rank = TrainerRank(make_config(kl={"coef": 0.0}), make_model("qwen3")[1])
    assert rank._reference is None
    assert "kl_reference" not in rank.train_step(batch, step=0, current_version=0).values


def test_the_reference_leaves_no_trace_even_where_it_fails(
    make_model, make_config, batch, tmp_path
) -> None:
    rank = TrainerRank(make_config(), make_model("qwen3")[1])
    base = weights_of(rank, tmp_path / "base")
    reference = Reference(rank._weights)
    rank.train_step(batch, step=0, current_version=0)
    moved = weights_of(rank, tmp_path / "moved")
    with pytest.raises(ZeroDivisionError), reference.in_place():
        assert largest_gap(weights_of(rank, tmp_path / "inside"), base) == 0.0
        1 / 0  # noqa: B018
    assert largest_gap(weights_of(rank, tmp_path / "after"), moved) == 0.0
    assert largest_gap(base, moved) > 0


def test_an_exported_version_is_measured_and_leaves_no_trace(
    make_model, make_config, batch, tmp_path
) -> None:
    """Also where its directory is damaged."""
    rank = TrainerRank(make_config(), make_model("qwen3")[1])
    before = rank.logprobs(batch)
    weights_of(rank, tmp_path / "before")
    rank.train_step(batch, step=0, current_version=0)
    moved = rank.logprobs(batch)
    found = rank.logprobs(batch, tmp_path / "before")
    for n, expected in before.items():
        np.testing.assert_array_equal(found[n], expected)
        assert not np.array_equal(moved[n], expected)
    with pytest.raises(ModelError):
        rank.logprobs(batch, tmp_path)
    for n, expected in moved.items():
        np.testing.assert_array_equal(rank.logprobs(batch)[n], expected)
