import math

import pytest
import torch

from mainspring.config.trainer import TrainerConfig
from mainspring.config.training.algorithm import Aggregation
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
        Aggregation.SEQ_MEAN_TOKEN_SUM_NORM: (8 / 10 + 6 / 10) / 2,
    }
    for aggregation in Aggregation:
        weights = token_weights(aggregation, [1, 3], 10)
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
        served_logprobs=torch.full((5,), 9.0),  # not what the ratio is about
        proximal_logprobs=torch.zeros(5),
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
    assert {name: float(total) for name, total in out.sums.items()} == {
        "clip_fraction": 2,
        "clip_fraction_low": 1,
        "clip_fraction_high": 1,
    }
