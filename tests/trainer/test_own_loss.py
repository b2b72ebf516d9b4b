"""The example loss takes a step of a real rank: named by its path, with a figure of its own."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mainspring.algorithms.choice import check_algorithms
from mainspring.config.files.reading import load_campaign
from mainspring.training.training_faults import AlgorithmBroken
from trainer.losses.clip import clip
from trainer.losses.protocol import LossOutput
from trainer.process.rank import TrainerRank

EXAMPLE = Path(__file__).parents[2] / "examples" / "own-loss"


@pytest.fixture
def cispo(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield load_campaign(EXAMPLE / "campaign.toml").trainer.loss
    sys.modules.pop("cispo", None)


@pytest.mark.parametrize("micro_batch_tokens", [64, 8192])
def test_the_example_loss_takes_a_step(
    cispo, micro_batch_tokens, make_model, make_config, batch, oracle
):
    model, directory = make_model("qwen3")
    config = make_config(loss=cispo, micro_batch_tokens=micro_batch_tokens)
    check_algorithms(config.trainer)
    total, num_capped, num_tokens = torch.zeros(()), 0, 0
    for sample in (each for each in batch if each.carries_advantage):
        mask = torch.from_numpy(sample.action_mask[1:])
        logprobs = oracle(model, sample)[mask]
        advantages = torch.from_numpy(sample.advantages[1:])[mask]
        ratio = (logprobs.detach() - torch.from_numpy(sample.logprobs[1:])[mask]).exp()
        total = total - (ratio.clamp(max=1.28) * advantages * logprobs).sum()
        num_capped += int((ratio > 1.28).sum())
        num_tokens += len(ratio)
    (total / num_tokens).backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
    found = TrainerRank(config, directory).train_step(batch, step=0, current_version=0)
    assert found.loss == pytest.approx(float(total.detach()) / num_tokens, abs=1e-5)
    assert found.grad_norm == pytest.approx(float(norm), rel=1e-4)
    assert num_capped > 0
    assert found.values == {"capped_fraction": num_capped / num_tokens}
    assert found.figures["capped_fraction"] == num_capped / num_tokens
    # what every loss is measured by stands beside it
    assert found.kl is not None and found.ratio_mean is not None and found.entropy is not None


calls = 0


def fails_late(tokens, trainer):
    """After a gradient was left behind."""
    global calls
    calls += 1
    if calls > 1:
        raise ArithmeticError("no")
    return clip(tokens, trainer)


def no_output(tokens, trainer):
    return clip(tokens, trainer).loss


def no_gradient(tokens, trainer):
    return LossOutput(clip(tokens, trainer).loss.detach())


def takes_a_name(tokens, trainer):
    return LossOutput(clip(tokens, trainer).loss, {"step": 1.0})


def other_names(tokens, trainer):
    return LossOutput(clip(tokens, trainer).loss, {f"n{len(tokens.logprobs)}": 1.0})


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("fails_late", "raised ArithmeticError: no"),
        ("no_output", "expected a LossOutput"),
        ("no_gradient", "expected a scalar with gradient"),
        ("takes_a_name", "names a sum 'step'"),
        ("other_names", "named the sums"),
    ],
)
def test_what_is_no_loss_moves_nothing(function, problem, make_model, make_config, batch):
    _, directory = make_model("qwen3")
    config = make_config(loss=f"{__name__}:{function}", micro_batch_tokens=64)
    check_algorithms(config.trainer)
    rank = TrainerRank(config, directory)
    before = rank.logprobs(batch)
    with pytest.raises(AlgorithmBroken, match=f"trainer.loss '.*' .*{problem}"):
        rank.train_step(batch, step=0, current_version=0)
    after = rank.logprobs(batch)
    assert all(np.array_equal(before[n], after[n]) for n in before)
    # no gradient is left for the next step either
    rank._loss = clip
    rank.train_step(batch, step=0, current_version=0)
    usual = TrainerRank(make_config(micro_batch_tokens=64), directory)
    usual.train_step(batch, step=0, current_version=0)
    mine, other = rank.logprobs(batch), usual.logprobs(batch)
    assert all(np.array_equal(mine[n], other[n]) for n in mine)


def needs_memory(tokens, trainer):
    raise MemoryError("Unable to allocate 8.0 GiB")


def test_lack_of_memory_in_a_loss_is_no_fault_of_the_loss(make_model, make_config, batch):
    """Another attempt may find the memory; a broken loss would end the campaign at once."""
    rank = TrainerRank(make_config(loss=f"{__name__}:needs_memory"), make_model("qwen3")[1])
    with pytest.raises(MemoryError):
        rank.train_step(batch, step=0, current_version=0)
