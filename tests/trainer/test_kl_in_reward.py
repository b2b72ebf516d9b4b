"""The KL penalty in the reward: its expected gradient is that of the divergence of sequences.

Exact, by enumeration of every sequence of two tokens over a vocabulary of two.
"""

from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from mainspring.algorithms.choice import find_loss
from mainspring.config.trainer import TrainerConfig
from mainspring.trajectories.samples import Sample
from trainer.losses.kl import to_come
from trainer.step.loss_pass import LossPass
from trainer.step.mini_batch import MiniBatch

COEF = 1.0
VERSION = 3


def sample_of(tokens: tuple[int, int], served: Tensor) -> Sample:
    """A prompt of one token, and two action tokens without an advantage of their own."""
    mask = np.array([False, True, True])
    logprobs = np.array([0.0, *served.tolist()], np.float32)
    return Sample(
        rollout=f"r{tokens}",
        branch=0,
        token_ids=np.array([0, *tokens], np.int32),
        action_mask=mask,
        logprobs=logprobs,
        versions=np.where(mask, VERSION, -1).astype(np.int32),
        advantages=np.zeros(3, np.float32),
    )


def logprobs_of(first: Tensor, second: Tensor, tokens: tuple[int, int]) -> Tensor:
    """[2] under logits of the first token, and of the second after each first one."""
    a, b = tokens
    return torch.stack([first.log_softmax(-1)[a], second[a].log_softmax(-1)[b]])


@pytest.mark.parametrize("loss", ["clip", "nll", "cispo", "dual_clip"])
def test_earlier_tokens_pay_for_the_divergence_that_they_lead_to(loss: str) -> None:
    """Policy and reference agree about the first token, and differ after token 1 alone."""
    first = torch.zeros(2, requires_grad=True)
    second = torch.tensor([[0.0, 0.0], [3.0, 0.0]], requires_grad=True)
    raw = {"loss": loss, "aggregation": "seq_mean_token_sum"}
    kl = {"coef": COEF, "where": "reward", "estimator": "k1"}
    trainer = TrainerConfig.model_validate(raw | {"kl": kl})
    total = torch.zeros(())
    divergence = torch.zeros(())
    for tokens in ((0, 0), (0, 1), (1, 0), (1, 1)):
        found = logprobs_of(first, second, tokens)
        reference = logprobs_of(torch.zeros(2), torch.zeros(2, 2), tokens)
        probability = found.sum().exp()
        divergence = divergence + probability * (found - reference).sum()
        batch = MiniBatch(
            [sample_of(tokens, found.detach())],
            reference={0: np.array([0.0, *reference.tolist()], np.float32)},
        )
        of_loss = LossPass(find_loss(trainer), None, trainer, batch, VERSION, cast(Any, None))
        # As often as the policy samples it.
        total = total + probability.detach() * of_loss([0], found, torch.zeros(2))
    expected = torch.autograd.grad(COEF * divergence, [first, second], retain_graph=True)
    gradients = torch.autograd.grad(total, [first, second])
    assert expected[0].tolist() == pytest.approx([-0.1256, 0.1256], abs=1e-4)
    for mine, exact in zip(gradients, expected, strict=True):
        assert mine.flatten().tolist() == pytest.approx(exact.flatten().tolist(), abs=1e-6)


def test_each_token_pays_for_itself_and_for_what_follows_in_its_own_sample() -> None:
    found = to_come(torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0]), [3, 2])
    assert found.tolist() == [7.0, 6.0, 4.0, 24.0, 16.0]
