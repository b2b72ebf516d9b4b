"""What tests of critics share: a campaign with one, and a batch with rewards."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from mainspring.config.campaign import CampaignConfig
from mainspring.trajectories.samples import Sample
from trainer.step.critic import ValuedSample

MakeConfig = Callable[..., CampaignConfig]
REWARDS = (1.0, 0.0, 1.0, 1.0, 0.0, 0.5, 0.0, 1.0)


def with_rewards(batch: Sequence[Sample]) -> list[Sample]:
    """As `step_batch` makes them for a critic; the last one is masked for its length."""
    nothing = [replace(each, advantages=np.zeros_like(each.advantages)) for each in batch]
    judged = [replace(s, reward=r) for s, r in zip(nothing[:-1], REWARDS, strict=False)]
    return [*judged, nothing[-1]]


def with_critic(make_config: MakeConfig, **fields: object) -> CampaignConfig:
    critic = {"lr": 5e-3} | fields.pop("critic", {})  # type: ignore[operator]
    return make_config(advantage="gae", filter="none", critic=critic, **fields)


def moved_from_before(judged: Sequence[ValuedSample]) -> list[ValuedSample]:
    """With values before the step that are not those of now, so that the clip decides for some."""
    rng = np.random.default_rng(0)
    return [
        replace(each, values=each.values + rng.normal(0, 0.5, len(each.values)).astype(np.float32))
        for each in judged
    ]
