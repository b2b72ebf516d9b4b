import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mainspring.training.training_faults import LogprobGapTooLarge, NonFiniteStep
from mainspring.trajectories.sequences import WeightedSequence
from mainspring.trajectories.turns import BrokenTrajectory
from tests.trainer.conftest import largest_gap, weights_of
from trainer.process.rank import TrainerRank


@pytest.fixture
def sequences(batch) -> list[WeightedSequence]:
    rng = np.random.default_rng(1)
    return [
        WeightedSequence(s.token_ids, rng.choice([0, 0.2, 1], len(s.token_ids)).astype(np.float32))
        for s in batch
    ]


def test_three_steps_equal_hugging_face_adamw(
    make_model, make_config, batch, oracle_step, tmp_path
):
    model, directory = make_model("qwen3")
    rank = TrainerRank(make_config(), directory)
    adamw = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(3):
        expected = oracle_step(model, batch, adamw)
        found = rank.train_step(batch, step=step, current_version=0)
        assert found.loss == pytest.approx(expected, abs=1e-5)
    assert largest_gap(weights_of(rank, tmp_path / "out"), dict(model.named_parameters())) < 1e-4


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean"])
def test_micro_batches_change_nothing(make_model, make_config, batch, aggregation, tmp_path):
    _, directory = make_model("qwen3")
    found = []
    for tokens in (64, 8192):
        config = make_config(aggregation=aggregation, micro_batch_tokens=tokens, entropy_coef=0.01)
        rank = TrainerRank(config, directory)
        metrics = rank.train_step(batch, step=0, current_version=0)
        found.append((metrics, weights_of(rank, tmp_path / str(tokens))))
    (metrics, weights), (other_metrics, other_weights) = found
    assert largest_gap(weights, other_weights) < 1e-4
    for name in ("loss", "grad_norm", "entropy", "kl", "logprob_gap_max"):
        assert getattr(metrics, name) == pytest.approx(getattr(other_metrics, name), abs=1e-5)


def test_two_updates_on_a_batch_equal_two_steps_of_one(make_model, make_config, batch, tmp_path):
    _, directory = make_model("qwen3")
    once = TrainerRank(make_config(), directory)
    first = once.train_step(batch, step=2, current_version=0)
    second = once.train_step(batch, step=2, current_version=0)
    twice = TrainerRank(make_config(updates_per_step=2), directory)
    both = twice.train_step(batch, step=2, current_version=0)
    assert (both.loss, both.entropy, both.grad_norm) == (first.loss, first.entropy, first.grad_norm)
    assert (both.kl, both.ratio_mean, both.values) == (
        second.kl,
        second.ratio_mean,
        second.values,
    )
    weights = weights_of(twice, tmp_path / "twice")
    assert largest_gap(weights, weights_of(once, tmp_path / "once")) == 0


def test_supervised_steps_equal_hugging_face(make_model, make_config, sequences, tmp_path):
    model, directory = make_model("qwen2")
    rank = TrainerRank(make_config(micro_batch_tokens=64), directory)
    adamw = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01)
    for _ in range(3):
        losses, total = torch.zeros(()), 0.0
        for sequence in sequences:
            ids = torch.from_numpy(sequence.token_ids.astype(np.int64))
            weights = torch.from_numpy(sequence.weights[1:])
            logits = model(input_ids=ids[None]).logits[0, :-1]
            losses = losses + (F.cross_entropy(logits, ids[1:], reduction="none") * weights).sum()
            total += float(weights.sum())
        loss = losses / total
        adamw.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        assert rank.supervised_step(sequences, 0.5) == pytest.approx(loss.item(), abs=1e-5)
    assert largest_gap(weights_of(rank, tmp_path / "out"), dict(model.named_parameters())) < 1e-4


def test_logprobs_are_recomputed_as_served(make_model, make_config, batch, oracle):
    model, directory = make_model("qwen3")
    found = TrainerRank(make_config(micro_batch_tokens=64), directory).logprobs(batch)
    for index, sample in enumerate(batch):
        with torch.no_grad():
            expected = oracle(model, sample).numpy()
        mask = sample.action_mask
        assert np.abs(found[index][mask] - expected[mask[1:]]).max() < 1e-5
        assert not found[index][~mask].any()


def test_a_gap_or_an_infinite_gradient_moves_nothing(make_model, make_config, batch, tmp_path):
    _, directory = make_model("qwen3")
    rank = TrainerRank(make_config(gap={}), directory)
    served = rank.logprobs(batch)
    honest = [replace(s, logprobs=served[i]) for i, s in enumerate(batch)]
    metrics = rank.train_step(honest, step=0, current_version=1)
    assert metrics.logprob_gap_max < 1e-5 and metrics.logprob_gap_p999 < 1e-5
    assert metrics.ratio_mean == pytest.approx(1.0, abs=1e-5)
    num_current = sum(int((s.versions == 1).sum()) for s in honest)
    assert metrics.num_gap_tokens == num_current
    before = weights_of(rank, tmp_path / "before")
    with pytest.raises(LogprobGapTooLarge, match=r"campaign t, step 2: .* version 1 "):
        rank.train_step(batch, step=1, current_version=1)
    with pytest.raises(
        NonFiniteStep, match=r"step 2: .* is (nan|inf); the campaign's .* of the version before it"
    ):
        broken = replace(
            batch[0], advantages=np.where(batch[0].action_mask, np.float32("inf"), np.float32(0))
        )
        rank.train_step([broken], step=1, current_version=9)
    assert largest_gap(weights_of(rank, tmp_path / "after"), before) == 0.0


def test_without_advantage_nothing_moves(make_model, make_config, batch, tmp_path):
    _, directory = make_model("qwen3")
    rank = TrainerRank(make_config(), directory)
    before = weights_of(rank, tmp_path / "before")
    flat = [replace(sample, advantages=np.zeros_like(sample.advantages)) for sample in batch]
    metrics = rank.train_step(flat, step=0, current_version=0)
    assert (metrics.num_samples, metrics.num_tokens, metrics.grad_norm) == (0, 0, None)
    assert (metrics.loss, metrics.entropy, metrics.kl, metrics.ratio_mean) == (None,) * 4
    assert metrics.num_gap_tokens == sum(int((s.versions == 0).sum()) for s in batch)
    assert largest_gap(weights_of(rank, tmp_path / "after"), before) == 0.0
    wrong = replace(batch[0], action_mask=np.ones_like(batch[0].action_mask))
    with pytest.raises(BrokenTrajectory, match="first token"):
        rank.train_step([wrong], step=0, current_version=0)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_resuming_equals_going_on(make_model, make_config, batch, sequences, optimizer, tmp_path):
    _, directory = make_model("qwen3")
    config = make_config(optimizer={"name": optimizer})
    rank = TrainerRank(config, directory)
    rank.supervised_step(sequences, 0.5)
    rank.train_step(batch, step=0, current_version=0)
    rank.save_checkpoint(tmp_path)
    expected = rank.train_step(batch, step=1, current_version=0)

    resumed = TrainerRank(config, directory)
    resumed.load_checkpoint(tmp_path)
    found = resumed.train_step(copy.deepcopy(batch), step=1, current_version=0)
    assert replace(found, seconds=0.0) == replace(expected, seconds=0.0)
    gap = largest_gap(weights_of(rank, tmp_path / "a"), weights_of(resumed, tmp_path / "b"))
    assert gap == 0.0
