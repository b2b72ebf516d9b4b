import math

import pytest
import torch

from mainspring.config.algorithm import Aggregation
from mainspring.config.trainer import TrainerConfig
from trainer.losses.aggregation import token_weights
from trainer.losses.clip import clip
from trainer.losses.protocol import ActionTokens


def test_each_aggregation_by_hand():
    # two samples of 1 and 3 tokens with per-token losses (8) and (1, 2, 3)
    values = [[8.0], [1.0, 2.0, 3.0]]
    expected = {
        Aggregation.TOKEN_MEAN: 14 / 4,
        Aggregation.SEQ_MEAN_TOKEN_MEAN: (8 + 2) / 2,
        Aggregation.SEQ_MEAN_TOKEN_SUM: (8 + 6) / 2,
    }
    for aggregation in Aggregation:
        weights = token_weights(aggregation, [1, 3])
        total = sum(w * sum(v) for w, v in zip(weights, values, strict=True))
        assert total == pytest.approx(expected[aggregation])


def test_a_sample_without_actions_is_refused():
    with pytest.raises(ValueError, match="without action tokens"):
        token_weights(Aggregation.TOKEN_MEAN, [3, 0])


def test_clip_metrics_and_gradient_by_hand():
    ratios = [1.5, 1.5, 0.5, 0.5, 1.0]
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0])
    logprobs = torch.tensor([math.log(r) for r in ratios], requires_grad=True)
    tokens = ActionTokens(
        logprobs=logprobs,
        entropy=torch.full((5,), 0.7),
        served_logprobs=torch.zeros(5),
        advantages=advantages,
        weights=torch.full((5,), 0.2),
        num_tokens_N=[2, 3],
    )
    out = clip(tokens, TrainerConfig(clip_low=0.2, clip_high=0.28, entropy_coef=0.1))
    objective = [1.28, -1.5, 0.5, -0.8, 2.0]
    assert out.loss.item() == pytest.approx(-sum(objective) / 5 - 0.1 * 0.7)
    out.loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([0.0, 0.3, -0.1, 0.0, -0.4])
    assert {name: float(total) for name, total in out.sums.items()} == {"clip_fraction": 2}


@pytest.mark.parametrize("aggregation", list(Aggregation))
def test_micro_batching_changes_nothing(aggregation):
    torch.manual_seed(0)
    lengths = [4, 1, 7, 3]
    weights_N = token_weights(aggregation, lengths)
    tokens = torch.randn(4, sum(lengths))
    weights = torch.tensor(weights_N).repeat_interleave(torch.tensor(lengths))

    trainer = TrainerConfig(clip_low=0.2, clip_high=0.28, entropy_coef=0.01)

    def gradient(cuts: list[int]) -> tuple[torch.Tensor, float]:
        logprobs = tokens[0].clone().requires_grad_()
        total = 0.0
        parts = [x.split(cuts) for x in (logprobs, tokens[1], tokens[2], tokens[3], weights)]
        for part in zip(*parts, strict=True):
            out = clip(ActionTokens(*part, num_tokens_N=[len(part[0])]), trainer)
            out.loss.backward()
            total += out.loss.item()
        assert logprobs.grad is not None
        return logprobs.grad, total

    whole, loss = gradient([15])
    for cuts in ([4, 1, 7, 3], [5, 10], [12, 3]):
        parts, parts_loss = gradient(cuts)
        assert torch.allclose(parts, whole, atol=1e-7)
        assert parts_loss == pytest.approx(loss, rel=1e-5)
