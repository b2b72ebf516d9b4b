"""A step of a supervised run: its loss and weights by plain Hugging Face, on both engines; and that
rejection sampling by [trainer] is the same thing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mainspring.trajectories.imitation import to_imitate
from mainspring.trajectories.samples import Sample
from tests.trainer import rank_jobs
from tests.trainer.conftest import largest_gap, weights_of
from tests.trainer.ranks import run
from trainer.model.hf_directory import load_weights
from trainer.process.rank import TrainerRank

NUM_STEPS = 3
LR = 1e-3
ADAMW = {"lr": LR, "eps": 1e-6, "warmup_steps": 2, "final_lr_fraction": 0.1}


@pytest.fixture
def imitated(batch) -> list[Sample]:
    return [to_imitate(s.rollout, 0, s.token_ids, s.action_mask) for s in batch]


@pytest.fixture
def by_hand(make_model, imitated):
    """Losses and weights of steps written out with autograd, one sequence at a time."""
    model, directory = make_model("qwen3")
    adamw = torch.optim.AdamW(
        model.parameters(), lr=LR, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.0
    )
    losses = []
    for step in range(NUM_STEPS):
        total, num_tokens = torch.zeros(()), 0
        for sample in imitated:
            ids = torch.from_numpy(sample.token_ids.astype(np.int64))
            mask = torch.from_numpy(sample.action_mask[1:])
            found = F.cross_entropy(
                model(input_ids=ids[None]).logits[0, :-1], ids[1:], reduction="none"
            )
            total += found[mask].sum()
            num_tokens += int(mask.sum())
        loss = total / num_tokens
        losses.append(loss.item())
        adamw.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        warmup, fall = min(1.0, (step + 1) / 2), 0.1 + 0.9 * (1 - step / NUM_STEPS)
        adamw.param_groups[0]["lr"] = LR * warmup * fall
        adamw.step()
    return losses, dict(model.named_parameters()), directory


def test_the_plain_engine_equals_hugging_face(make_config, by_hand, imitated, tmp_path):
    losses, weights, directory = by_hand
    rank = TrainerRank(make_config(micro_batch_tokens=64, optimizer=ADAMW), directory)
    found = [rank.sft_step(imitated, step=n, num_steps=NUM_STEPS) for n in range(NUM_STEPS)]
    assert [each.loss for each in found] == pytest.approx(losses, abs=1e-5)
    assert largest_gap(weights_of(rank, tmp_path / "out"), weights) < 0.05 * LR


@pytest.mark.parametrize("layout", [{}, {"pipeline_parallel": 2}, {"data_parallel": 2}])
def test_the_mcore_engine_equals_hugging_face(make_config, by_hand, imitated, layout, tmp_path):
    losses, weights, directory = by_hand
    config = make_config(engine="mcore", micro_batch_tokens=64, optimizer=ADAMW, **layout)
    out = tmp_path / "out"
    ranks = run(
        config.trainer.world_size, rank_jobs.supervised, config, directory, imitated, NUM_STEPS, out
    )
    for found in ranks:
        assert [each.loss for each in found] == pytest.approx(losses, abs=1e-5)
    assert largest_gap(load_weights(out), weights) < 0.05 * LR


def test_a_checkpoint_resumes_with_the_optimizer_of_the_run(
    make_model, make_config, imitated, tmp_path
):
    _, directory = make_model("qwen3")
    config = make_config(optimizer=ADAMW)
    rank = TrainerRank(config, directory)
    rank.sft_step(imitated, step=0, num_steps=NUM_STEPS)
    rank.save_checkpoint(tmp_path)
    expected = [rank.sft_step(imitated, step=n, num_steps=NUM_STEPS) for n in (1, 2)]
    resumed = TrainerRank(config, directory)
    resumed.load_checkpoint(tmp_path)
    assert [resumed.sft_step(imitated, step=n, num_steps=NUM_STEPS) for n in (1, 2)] == expected


def test_rejection_sampling_is_a_supervised_step_on_what_is_kept(
    make_model, make_config, batch, tmp_path
):
    _, directory = make_model("llama")
    optimizer = {"warmup_steps": 0, "eps": 1e-6}
    kept = [sample for n, sample in enumerate(batch) if n % 2]
    weighed = [
        replace(s, advantages=np.where(s.action_mask, np.float32(n % 2), np.float32(0)))
        for n, s in enumerate(batch)
    ]
    raft = TrainerRank(make_config(advantage="raft", loss="nll", optimizer=optimizer), directory)
    supervised = TrainerRank(make_config(optimizer=optimizer), directory)
    found = raft.train_step(weighed, step=0, current_version=0)
    expected = supervised.sft_step(
        [to_imitate(s.rollout, 0, s.token_ids, s.action_mask) for s in kept], step=0, num_steps=10
    )
    assert found.loss == pytest.approx(expected.loss, abs=1e-5)
    assert found.values["nll"] == pytest.approx(expected.loss, abs=1e-5)
    assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-5)
    weights = weights_of(supervised, tmp_path / "supervised")
    assert largest_gap(weights_of(raft, tmp_path / "raft"), weights) < 1e-5
