"""Section [trainer.critic] of a campaign file: a value model, for the advantage "gae".

What is computed from its values is in `mainspring.algorithms.gae`; the model is `trainer.critic`'s.
"""

from typing import Annotated

from pydantic import Field

from mainspring.config.section import LARGE, MANY, Section, Switch, Within


class CriticConfig(Section):
    """A value model beside the policy (PPO's critic): the policy's model as it is at version 0,
    with one number in place of the output layer, and an AdamW of its own. All of its weights are
    trained, also where the policy has adapters. Before a step it gives a value to each action
    token. Generalized advantage estimation (arXiv 1506.02438) makes advantages of these values and
    of the reward, which is given once, at the last action token of a rollout: its branches follow
    each other in the order in which they ended. The critic is trained on the policy's mini-batches,
    after the policy, and is a part of every checkpoint. It needs the advantage "gae" and the filter
    "none"."""

    lr: Annotated[float, Within(le=10)] = Field(default=1e-5, gt=0)
    """Learning rate of its AdamW, the same in all steps."""
    max_grad_norm: Annotated[float, Within(le=1e12)] = Field(default=1.0, gt=0)
    """Larger gradients are scaled down to this norm."""
    gamma: Annotated[float, Within()] = Field(default=1.0, ge=0, le=1)
    """Discount of what follows, for each action token."""
    gae_lambda: Annotated[float, Within()] = Field(default=1.0, ge=0, le=1)
    """How far an advantage looks ahead, the lambda of GAE: with 1 up to the reward, with 0 up to
    the value of the next action token."""
    value_clip: Annotated[float, Within(le=LARGE)] = Field(default=0.5, gt=0)
    """How far a value may move from the one before the step, until its loss has no gradient."""
    whiten: Switch = True
    """Whether advantages are scaled to mean 0 and variance 1 over the batch's action tokens."""
    warmup_steps: Annotated[int, Within(le=MANY)] = Field(default=0, ge=0)
    """Number of first steps that train the critic alone: they make versions with the policy's
    weights as they were, and take nothing from the policy's warm-up and fall of the learning
    rate."""
