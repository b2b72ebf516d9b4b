"""The fsdp engine in a rank: the steps of the plain engine, and what FSDP alone could break."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mainspring.config.campaign import CampaignConfig
from mainspring.training.training_faults import AlgorithmBroken, LogprobGapTooLarge
from mainspring.trajectories.sequences import WeightedSequence
from tests.trainer.any_models import samples_of, save_model
from tests.trainer.conftest import largest_gap, weights_of
from trainer.engines.fsdp.attention import QUERY_BLOCK, _capped, _one
from trainer.losses.protocol import ActionTokens, LossOutput
from trainer.process.rank import TrainerRank

LR = 5e-3


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
def test_steps_are_those_of_the_plain_engine(family, make_model, make_config, batch, tmp_path):
    _, directory = make_model(family)
    ranks = [TrainerRank(make_config(engine=engine), directory) for engine in ("plain", "fsdp")]
    expected, found = (rank.logprobs(batch) for rank in ranks)
    assert max(float(np.abs(found[n] - expected[n]).max()) for n in expected) < 1e-5
    for step in range(2):
        theirs, mine = (r.train_step(batch, step=step, current_version=0) for r in ranks)
        for name in ("loss", "grad_norm", "entropy", "kl", "ratio_mean", "logprob_gap_max"):
            assert getattr(mine, name) == pytest.approx(getattr(theirs, name), abs=1e-4), name
    weights = [weights_of(rank, tmp_path / str(n)) for n, rank in enumerate(ranks)]
    assert largest_gap(*weights) < 0.1 * LR


def test_muon_moves_the_matrices_of_layers_as_the_plain_engine_does(
    make_model, make_config, batch, tmp_path
):
    _, directory = make_model("qwen3")
    weights = []
    for engine in ("plain", "fsdp"):
        config = make_config(engine=engine, optimizer={"name": "muon", "weight_decay": 0.1})
        rank = TrainerRank(config, directory)
        for step in range(3):
            rank.train_step(batch, step=step, current_version=0)
        weights.append(weights_of(rank, tmp_path / engine))
    assert largest_gap(*weights) < 0.1 * LR


def test_what_is_computed_before_a_step_leaves_the_step_as_it_is(make_config, tmp_path):
    """After a pass without gradient FSDP holds whole weights, which an optimizer must not take."""
    save_model("qwen3", tmp_path / "model")
    samples, config = samples_of(9, 30), make_config(engine="fsdp")
    found = []
    for looks in (False, True):
        rank = TrainerRank(config, tmp_path / "model")
        if looks:
            rank.logprobs(samples)
        for step in range(2):
            rank.train_step(samples, step=step, current_version=0)
        found.append(weights_of(rank, tmp_path / str(looks)))
    before = weights_of(TrainerRank(config, tmp_path / "model"), tmp_path / "before")
    assert largest_gap(*found) == 0
    assert all((found[1][name] != weight).any() for name, weight in before.items())


def test_a_reference_and_an_export_take_the_place_of_the_weights(make_config, tmp_path):
    save_model("qwen3_moe", tmp_path / "model")
    samples = samples_of(9, 30)
    rank = TrainerRank(make_config(engine="fsdp", kl={"coef": 0.1}), tmp_path / "model")
    first = rank.logprobs(samples)
    rank.export_hf(tmp_path / "v0")
    rank.train_step(samples, step=0, current_version=0)
    moved = rank.logprobs(samples)
    of_export = rank.logprobs(samples, tmp_path / "v0")
    assert all(np.array_equal(of_export[n], first[n]) for n in first)
    again = rank.logprobs(samples)
    assert all(np.array_equal(again[n], moved[n]) for n in moved)
    assert not any(np.array_equal(again[n], first[n]) for n in first)
    second = rank.train_step(samples, step=1, current_version=0)
    assert second.loss_kl is not None and second.loss_kl > 0


def test_a_gap_moves_nothing(make_config, tmp_path):
    save_model("qwen3", tmp_path / "model")
    rank = TrainerRank(make_config(engine="fsdp", gap={}), tmp_path / "model")
    before = weights_of(rank, tmp_path / "before")
    with pytest.raises(LogprobGapTooLarge):
        rank.train_step(samples_of(9, 30), step=0, current_version=1)
    assert largest_gap(weights_of(rank, tmp_path / "after"), before) == 0


def broken_loss(tokens: ActionTokens, trainer: Any) -> LossOutput:
    raise ZeroDivisionError("of a test")


def test_a_loss_that_fails_moves_nothing(make_config, tmp_path):
    save_model("qwen3", tmp_path / "model")
    rank = TrainerRank(
        make_config(engine="fsdp", loss=f"{__name__}:broken_loss"), tmp_path / "model"
    )
    before = weights_of(rank, tmp_path / "before")
    with pytest.raises(AlgorithmBroken, match="of a test"):
        rank.train_step(samples_of(9, 30), step=0, current_version=0)
    assert largest_gap(weights_of(rank, tmp_path / "after"), before) == 0


def test_supervised_steps_lower_the_loss(make_config, tmp_path):
    save_model("gemma3_text", tmp_path / "model")
    rank = TrainerRank(make_config(engine="fsdp"), tmp_path / "model")
    sequences = [
        WeightedSequence(s.token_ids, s.action_mask.astype(np.float32)) for s in samples_of(9, 30)
    ]
    losses = [rank.supervised_step(sequences, 1.0) for _ in range(4)]
    assert losses[-1] < losses[0] - 0.05


def test_bfloat16_keeps_weights_in_float32(make_config, tmp_path):
    """A weight of 1 takes steps that bfloat16 would round away."""
    save_model("qwen3", tmp_path / "model")
    samples = samples_of(9, 30)
    found = []
    for dtype in ("float32", "bfloat16"):
        options = {"engine": "fsdp", "dtype": dtype, "optimizer": {"lr": 1e-5}}
        rank = TrainerRank(make_config(**options), tmp_path / "model")
        metrics = rank.train_step(samples, step=0, current_version=0)
        found.append((metrics, weights_of(rank, tmp_path / dtype)))
    (exact, weights), (rounded, own) = found
    assert rounded.loss == pytest.approx(exact.loss, abs=2e-2)
    assert rounded.grad_norm == pytest.approx(exact.grad_norm, rel=5e-2)
    start = weights_of(TrainerRank(make_config(engine="fsdp"), tmp_path / "model"), tmp_path / "v0")
    moved = max(float((own[name] - start[name]).abs().max()) for name in own)
    assert 0.5e-5 < moved < 1.5e-5
    assert largest_gap(own, weights) < 2.5e-5


def test_weights_in_the_hosts_memory_take_the_same_steps(make_config, tmp_path):
    """As on GPUs, where alone a file may ask for it. Gradients leave the device after each of
    several passes there, and otherwise are reduced once."""
    save_model("qwen3", tmp_path / "model")
    samples, config = samples_of(9, 30, 9), make_config(engine="fsdp", micro_batch_tokens=64)
    offload = config.trainer.model_copy(update={"optimizer_offload": True})
    found = []
    for each in (config, config.model_copy(update={"trainer": offload})):
        rank = TrainerRank(each, tmp_path / "model")
        for step in range(2):
            rank.train_step(samples, step=step, current_version=0)
        found.append(weights_of(rank, tmp_path / str(len(found))))
    assert largest_gap(*found) == 0


def test_equal_runs_have_equal_bits(make_config, tmp_path):
    save_model("qwen3_5_text", tmp_path / "model")
    samples = samples_of(9, 30)
    usual = make_config(engine="fsdp", micro_batch_tokens=2048).model_dump(exclude_unset=True)
    config = CampaignConfig.model_validate(usual | {"schedule": "reproducible"})
    digests, found = [], []
    for number in range(2):
        rank = TrainerRank(config, tmp_path / "model")
        metrics = [rank.train_step(samples, step=step, current_version=0) for step in range(2)]
        digests.append([each.gradient for each in metrics])
        found.append(weights_of(rank, tmp_path / str(number)))
    assert digests[0] == digests[1] and None not in digests[0]
    assert digests[0][0] != digests[0][1]
    assert largest_gap(*found) == 0


@pytest.mark.parametrize("length", [QUERY_BLOCK - 5, 2 * QUERY_BLOCK + 17])
@pytest.mark.parametrize("window", [None, 7, QUERY_BLOCK + 3])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_attention_in_blocks_equals_a_mask_of_all_pairs(length, window, has_sinks):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, heads, length, 4) for heads in (4, 2, 2))
    sinks = torch.randn(4) if has_sinks else None
    found = _one(q, k, v, 0.3, window, sinks, as_served=False)
    far = torch.arange(length)[:, None] - torch.arange(length)
    seen = (far >= 0) & (far < (window or length))
    scores = (q @ k.repeat_interleave(2, 1).mT * 0.3).masked_fill(~seen, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.view(1, -1, 1, 1).expand(1, 4, length, 1)], -1)
    expected = torch.softmax(scores, -1)[..., :length] @ v.repeat_interleave(2, 1)
    assert float((found - expected).abs().max()) < 1e-5
    if sinks is None:
        capped = _capped(q, k, v, 0.3, 1.5, window)
        scores = torch.tanh((q @ k.repeat_interleave(2, 1).mT * 0.3) / 1.5) * 1.5
        shares = torch.softmax(scores.masked_fill(~seen, -torch.inf), -1)
        assert float((capped - shares @ v.repeat_interleave(2, 1)).abs().max()) < 1e-5


def test_a_rank_without_sequences_has_a_gradient_of_zeros(make_config, tmp_path):
    save_model("qwen3", tmp_path)
    rank = TrainerRank(make_config(engine="fsdp"), tmp_path)
    engine: Any = rank._engine
    engine.forward_backward([], lambda *_: pytest.fail("no sequence has a loss"))
    for name, parameter in engine.weights.parameters().items():
        assert parameter.grad is not None and not parameter.grad.full_tensor().any(), name
    assert engine.logprobs([]) == {}


def test_all_samples_without_advantage_move_nothing(make_config, tmp_path):
    save_model("qwen3", tmp_path / "model")
    rank = TrainerRank(make_config(engine="fsdp"), tmp_path / "model")
    flat = [replace(s, advantages=np.zeros_like(s.advantages)) for s in samples_of(9, 30)]
    before = weights_of(rank, tmp_path / "before")
    metrics = rank.train_step(flat, step=0, current_version=0)
    assert metrics.grad_norm is None and metrics.logprob_gap_max > 0
    assert largest_gap(weights_of(rank, tmp_path / "after"), before) == 0
