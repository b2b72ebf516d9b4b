"""A step's batch as the trainer takes it: samples with advantages, and figures about the batch.

CPU-bound and free of the event loop: called in a thread, as a large batch takes seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from activities.training.told_rollouts import SeenRollout, told_of
from infra.db.training.batches import BatchGroup, BatchRollout
from mainspring.algorithms.choice import (
    advantages_of_batch,
    advantages_of_turns,
    has_turn_advantages,
)
from mainspring.algorithms.equal_rewards import is_flat
from mainspring.config.trainer import TrainerConfig
from mainspring.config.training.algorithm import Overlong, Samples
from mainspring.status import CUT_ENDS
from mainspring.training.trained_rollouts import TrainedRollout
from mainspring.trajectories.samples import Sample, digest, samples_of, without_tokens_before
from mainspring.trajectories.turn_places import turn_places

STALENESS_BINS = 3
"""Ages with a share of their own; older tokens share the last bin."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """Why nothing of a batch can be trained."""

    reason: str
    is_replaced: bool
    """Its groups give way to new ones: masks took everything, or there are no tokens. A batch whose
    advantages are all 0 counts where the campaign's filter let it through."""


@dataclass(frozen=True, slots=True)
class StepBatch:
    samples: list[Sample]
    digest: str
    """Digest of the samples: another batch is another checkpoint."""
    figures: dict[str, float | None]
    """About the batch; None where there is nothing to measure."""
    rollouts: list[TrainedRollout]
    """All of the batch, as the step trains on them; advantages of a critic are not known yet."""
    nothing: Nothing | None = None
    """None: a part of it can be trained."""


def step_batch(groups: list[BatchGroup], trainer: TrainerConfig, *, version: int) -> StepBatch:
    """`version`: the weights that the step begins with. Masked rollouts give no sample. Raises
    BrokenTrajectory when stored turns do not line up, AlgorithmBroken."""
    rewards_NG = [[rollout.reward for rollout in group.rollouts] for group in groups]
    advantages_NG = _advantages(groups, rewards_NG, trainer)
    samples: list[Sample] = []
    num_overlong = 0
    had_advantage = False
    seen: list[SeenRollout] = []
    for group, advantages_G in zip(groups, advantages_NG, strict=True):
        for rollout, advantage in zip(group.rollouts, advantages_G, strict=True):
            seen.append(SeenRollout(rollout, None if trainer.critic else advantage))
            if advantage is None or not rollout.calls:
                continue
            reward = None if trainer.critic is None else _of_end(rollout)
            had_advantage |= trainer.critic is not None or _any(advantage)
            if trainer.overlong is Overlong.MASK and rollout.stop_reason in CUT_ENDS:
                num_overlong += 1
                seen[-1] = replace(seen[-1], is_overlong=True)
                advantage = 0.0  # its tokens are still compared with the engine's numbers
                reward = None
            if trainer.critic is not None:  # it gives the advantages, in the ranks
                advantage = 0.0
            samples += samples_of(
                rollout.id,
                rollout.calls,
                advantage,
                reward=reward,
                turn_rewards=None if reward is None else _of_turns(rollout),
                trained=rollout.trained,
                per_call=trainer.samples is Samples.CALL,
            )
    scored_N = [[reward for reward in rewards_G if reward is not None] for rewards_G in rewards_NG]
    rewards = [reward for scored in scored_N for reward in scored]
    figures: dict[str, float | None] = {
        "reward_mean": sum(rewards) / len(rewards) if rewards else None,
        "mixed_groups": float(sum(not is_flat(scored) for scored in scored_N)),
        **_staleness(samples, version),
    }
    if trainer.overlong is Overlong.MASK:
        figures["num_overlong_masked"] = float(num_overlong)
    bound = trainer.max_token_staleness
    of_all_ages = samples
    if bound is not None:
        before = sum(sample.num_action_tokens for sample in samples)
        samples = [without_tokens_before(sample, version - bound) for sample in samples]
        after = sum(sample.num_action_tokens for sample in samples)
        figures["num_stale_tokens_masked"] = float(before - after)
    nothing = None
    if not any(sample.carries_advantage for sample in samples):
        nothing = _nothing(samples, figures, trainer, had_advantage)
    is_warm_up = trainer.critic is not None and version < trainer.critic.warmup_steps
    told = told_of(seen, of_all_ages, samples, is_warm_up=is_warm_up)
    return StepBatch(samples, digest(samples), figures, told, nothing)


def _any(advantage: float | Mapping[int, float]) -> bool:
    return any(advantage.values()) if isinstance(advantage, Mapping) else bool(advantage)


def _nothing(
    samples: list[Sample],
    figures: Mapping[str, float | None],
    trainer: TrainerConfig,
    had_advantage: bool,
) -> Nothing:
    """`had_advantage`: before anything was masked."""
    if not samples:
        return Nothing("none of its rollouts has a token that the policy sampled", True)
    if not had_advantage:
        cause = f'trainer.advantage = "{trainer.advantage}" gave every rollout 0'
        return Nothing(f"{cause}, and trainer.filter = {trainer.filter!r} let it through", False)
    reasons = []
    if stale := figures.get("num_stale_tokens_masked"):
        bound = trainer.max_token_staleness
        reasons.append(f"{stale:,.0f} tokens are older than trainer.max_token_staleness = {bound}")
    if cut := figures.get("num_overlong_masked"):
        reasons.append(f'{cut:,.0f} rollouts were cut off by a limit (trainer.overlong = "mask")')
    return Nothing("; ".join(reasons) or "its tokens are masked", True)


def _advantages(
    groups: list[BatchGroup], rewards_NG: list[list[float | None]], trainer: TrainerConfig
) -> Sequence[Sequence[float | Mapping[int, float] | None]]:
    """Advantages of each rollout: one number, or one for each of its trained calls."""
    if not has_turn_advantages(trainer):
        return advantages_of_batch(rewards_NG, trainer)
    found_NG: list[list[Mapping[int, float] | None]] = []
    for group in groups:
        places_G = [
            turn_places(rollout.id, rollout.calls, rollout.trained, rollout.turn_rewards)
            for rollout in group.rollouts
        ]
        turns_GN = [[*places.values()] for places in places_G]
        ends_G = [_of_end(rollout) for rollout in group.rollouts]
        found_G = advantages_of_turns(ends_G, turns_GN, trainer)
        found_NG.append(
            [
                None if advantages is None else dict(zip(places, advantages, strict=True))
                for places, advantages in zip(places_G, found_G, strict=True)
            ]
        )
    return found_NG


def _of_end(rollout: BatchRollout) -> float | None:
    """Its reward without what its turns were given; None: it is masked."""
    if rollout.reward is None or rollout.turn_rewards is None:
        return rollout.reward
    return rollout.turn_rewards.of_end


def _of_turns(rollout: BatchRollout) -> Mapping[int, float] | None:
    """For a critic, which has an opinion of its own where one is missing."""
    if rollout.turn_rewards is None:
        return None
    return {call: r for call, r in rollout.turn_rewards.by_call.items() if r is not None}


def _staleness(samples: list[Sample], version: int) -> dict[str, float | None]:
    """Age of the sampled tokens in policy versions, before any is masked for it."""
    # Tokens of a version that was rolled back are not older than the weights.
    ages = [np.maximum(version - s.versions[s.action_mask], 0) for s in samples]
    ages_N = np.concatenate([np.zeros(0, np.int32), *ages])
    names = [f"staleness_{age}" for age in range(STALENESS_BINS)]
    names.append(f"staleness_{STALENESS_BINS}plus")
    if not len(ages_N):
        return dict.fromkeys(["staleness_mean", "staleness_max", *names])
    counts = np.bincount(np.clip(ages_N, 0, STALENESS_BINS), minlength=len(names))
    shares = {name: float(count) / len(ages_N) for name, count in zip(names, counts, strict=True)}
    return {
        "staleness_mean": float(ages_N.mean()),
        "staleness_max": float(ages_N.max()),
        **shares,
    }
