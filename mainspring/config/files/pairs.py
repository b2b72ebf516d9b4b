"""Settings that mean nothing together: one table, of campaigns.

Each pair is possible by itself and would run; what it trains is nothing, or not what it tells. A
pair that teaches nothing or the wrong thing is refused where a campaign is given, and spared where
one was stored; a setting without effect, or one that a method does not want, is warned of: in
`campaign plan`, and in the checklist of `train` and `campaign start`. What cannot be computed at
all is refused by the section itself. Pure; imported by `campaign` and by what prints warnings.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mainspring.config.files.agent_pairs import of_agents
from mainspring.config.files.colocated import not_colocated
from mainspring.config.files.leftovers import RATIO_LOSSES, Together, leftovers
from mainspring.config.section import BUNDLED
from mainspring.config.training.algorithm import Aggregation, Overlong
from mainspring.config.training.correction import DEFAULT_BOUNDS, NO_CORRECTION
from mainspring.config.training.kl import KlEstimator, KlPlace
from mainspring.config.training.method_defaults import LORA_LR

GROUP_ADVANTAGES = ("grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline", "step_wise")
"""Those by which a group of equal rewards has no advantage."""
GSPO_CLIP = 0.01
"""No geometric mean of a sample's ratios is as far from 1 as this in an ordinary step."""
TOKEN_CLIP = 1e-3
"""Below it, nearly every token's ratio is clipped."""
GREEDY = 0.2
"""Below it, most rollouts of a group are equal."""


@dataclass(frozen=True, slots=True)
class Pair:
    text: Callable[[Together], str]
    """The mistake, and what to set."""
    when: Callable[[Together], Any]
    """Whether a campaign has it."""


def refusals(config: Together) -> list[str]:
    return [pair.text(config) for pair in REFUSED if pair.when(config)]


def warnings(config: Together) -> list[str]:
    """Warnings of what is not refused, in the order of the table."""
    sentences = (pair.text(config) for pair in WARNED if pair.when(config))
    return [*sentences, *of_agents(config), *_idle(config), *leftovers(config)]


def _bounds_leave_out_one(config: Together) -> bool:
    correction = config.trainer.correction
    low, high = correction.bounds
    return correction.kind in DEFAULT_BOUNDS and not low <= 1 <= high


def _keeps_nothing(config: Together) -> bool:
    trainer, parts = config.trainer, config.reward.parts
    asks = trainer.advantage == "raft" or trainer.filter == "solved"
    only_outcome = all(part.name == "outcome" and not part.options for part in parts)
    return asks and only_outcome and sum(part.weight for part in parts) < trainer.keep_reward


REFUSED: tuple[Pair, ...] = (
    Pair(
        lambda c: (
            "policy.temperature = 0 makes all rollouts of a group the same: there is nothing "
            "to compare, and nothing is learned; set it to 1 (greedy evaluations have their own)"
        ),
        lambda c: c.policy.temperature == 0,
    ),
    Pair(lambda c: c.policy.sampling.not_trained(), lambda c: c.policy.sampling.not_trained()),
    Pair(
        lambda c: (
            f"trainer.max_token_staleness = {c.trainer.max_token_staleness} is below "
            f"trainer.max_staleness = {c.trainer.max_staleness}: rollouts may be that old by "
            "design, and all their tokens would be masked; raise max_token_staleness, lower "
            "max_staleness, or leave max_token_staleness unset"
        ),
        lambda c: (
            c.trainer.max_token_staleness is not None
            and c.trainer.max_token_staleness < c.trainer.max_staleness
        ),
    ),
    Pair(
        lambda c: (
            'trainer.kl.estimator = "k1" has no effect in the loss: its expected gradient is '
            '0; set estimator = "k3" or "k2", or where = "reward"'
        ),
        lambda c: (
            c.trainer.kl.coef
            and c.trainer.kl.where is KlPlace.LOSS
            and c.trainer.kl.estimator is KlEstimator.K1
        ),
    ),
    Pair(
        lambda c: (
            "trainer.correction.low = {:g} and high = {:g} leave out the ratio 1, which every "
            "token has on which engine and trainer agree: set low below 1 and high above it".format(
                *c.trainer.correction.bounds
            )
        ),
        _bounds_leave_out_one,
    ),
    Pair(
        lambda c: (
            "every part of [reward] has the weight 0: all rewards are 0, and nothing is "
            "learned; set reward.parts.weight"
        ),
        lambda c: not any(part.weight for part in c.reward.parts),
    ),
    Pair(
        lambda c: (
            f"trainer.keep_reward = {c.trainer.keep_reward:g} is above what the reward can "
            "be: no rollout is ever kept; lower it, or raise reward.parts.weight"
        ),
        _keeps_nothing,
    ),
    Pair(not_colocated, not_colocated),
)


def _is_single_update(config: Together) -> bool:
    return config.trainer.updates_per_step * config.trainer.mini_batches == 1


def _band_is_empty(config: Together) -> bool:
    band, size = config.curriculum, config.trainer.group_size
    rates = {solved / size for solved in range(size + 1)}
    rates |= {
        solved / (size * band.recent_groups) for solved in range(size * band.recent_groups + 1)
    }
    return band.kind == "band" and not any(band.low <= rate <= band.high for rate in rates)


WARNED: tuple[Pair, ...] = (
    Pair(
        lambda c: (
            f"policy.temperature = {c.policy.temperature:g}: most rollouts of a group will "
            "be equal; groups learn from differences"
        ),
        lambda c: c.policy.temperature is not None and 0 < c.policy.temperature < GREEDY,
    ),
    Pair(
        lambda c: (
            f"trainer.clip_low = {c.trainer.clip_low:g} and clip_high = "
            f'{c.trainer.clip_high:g} clip nothing with loss = "gspo", whose ratio is that of '
            "whole sequences: about 0.0003 and 0.0004"
        ),
        lambda c: (
            c.trainer.loss == "gspo" and max(c.trainer.clip_low, c.trainer.clip_high) >= GSPO_CLIP
        ),
    ),
    Pair(
        lambda c: (
            f'trainer.aggregation = "{c.trainer.aggregation}" gives long sequences more '
            'weight than loss = "gspo" means: set "seq_mean_token_mean"'
        ),
        lambda c: (
            c.trainer.loss == "gspo"
            and c.trainer.aggregation is not Aggregation.SEQ_MEAN_TOKEN_MEAN
        ),
    ),
    Pair(
        lambda c: (
            f"trainer.clip_high = {c.trainer.clip_high:g} clips nearly every token with loss "
            f'= "{c.trainer.loss}": bounds so narrow are for "gspo"'
        ),
        lambda c: (
            c.trainer.loss in ("clip", "dual_clip", "cispo") and c.trainer.clip_high < TOKEN_CLIP
        ),
    ),
    Pair(
        lambda c: (
            f"trainer.dual_clip = {c.trainer.dual_clip:g} is below 1 + clip_high = "
            f"{1 + c.trainer.clip_high:g}: tokens of negative advantage lose their gradient before "
            "those of positive advantage"
        ),
        lambda c: c.trainer.loss == "dual_clip" and c.trainer.dual_clip < 1 + c.trainer.clip_high,
    ),
    Pair(
        lambda c: (
            f'trainer.filter = "{c.trainer.filter}" takes groups of equal rewards out of '
            f'the batch, whose mean advantage = "{c.trainer.advantage}" compares with: set filter '
            '= "none"'
        ),
        lambda c: (
            c.trainer.advantage == "reinforce_plus_plus" and c.trainer.filter in ("mixed", "solved")
        ),
    ),
    Pair(
        lambda c: (
            'trainer.filter = "mixed" drops groups in which all rollouts are kept by '
            'advantage = "raft": set filter = "solved"'
        ),
        lambda c: c.trainer.advantage == "raft" and c.trainer.filter == "mixed",
    ),
    Pair(
        lambda c: (
            f'trainer.filter = "solved" keeps groups of equal rewards, which advantage = '
            f'"{c.trainer.advantage}" learns nothing from: it is for "raft"; set filter = "mixed"'
        ),
        lambda c: c.trainer.filter == "solved" and c.trainer.advantage in GROUP_ADVANTAGES,
    ),
    Pair(
        lambda c: (
            'trainer.filter = "none": groups of equal rewards take a place in the batch and '
            f'train nothing with advantage = "{c.trainer.advantage}"; "mixed" replaces them'
        ),
        lambda c: c.trainer.filter == "none" and c.trainer.advantage in GROUP_ADVANTAGES,
    ),
    Pair(
        lambda c: (
            f"trainer.min_scored = {c.trainer.min_scored}: a rollout that is compared with "
            "no other has no advantage; set it to 2 or more"
        ),
        lambda c: c.trainer.min_scored == 1 and c.trainer.advantage in GROUP_ADVANTAGES,
    ),
    Pair(
        lambda c: (
            f'trainer.kl.estimator = "{c.trainer.kl.estimator}" in the reward: the expected '
            'gradient of this penalty is not that of the divergence; "k1" is'
        ),
        lambda c: (
            c.trainer.kl.coef
            and c.trainer.kl.where is KlPlace.REWARD
            and c.trainer.kl.estimator is not KlEstimator.K1
        ),
    ),
    Pair(
        lambda c: (
            'trainer.proximal = "recomputed" with one update a step: the ratio is 1 and '
            "nothing is clipped or corrected; add [trainer.correction] or mini_batches, or leave "
            "it out"
        ),
        lambda c: (
            c.trainer.proximal == "recomputed"
            and c.trainer.correction.kind == NO_CORRECTION
            and (_is_single_update(c) and c.trainer.loss in RATIO_LOSSES)
        ),
    ),
    Pair(
        lambda c: (
            'trainer.proximal = "recomputed" costs a forward pass, and loss = "nll" has no '
            "ratio: leave it out"
        ),
        lambda c: (
            c.trainer.proximal == "recomputed"
            and c.trainer.loss == "nll"
            and c.trainer.correction.kind == NO_CORRECTION
            and not (c.trainer.kl.coef and c.trainer.kl.where is KlPlace.REWARD)
        ),
    ),
    Pair(
        lambda c: (
            'trainer.loss = "nll" has no ratio and no clip: nothing bounds the '
            f"{c.trainer.updates_per_step * c.trainer.mini_batches} updates of a step with "
            f'advantage = "{c.trainer.advantage}"; "clip" does'
        ),
        lambda c: (
            c.trainer.loss == "nll" and c.trainer.advantage != "raft" and not _is_single_update(c)
        ),
    ),
    Pair(
        lambda c: (
            f"trainer.optimizer.lr = {c.trainer.optimizer.lr:g} hardly moves adapters "
            f"(trainer.lora.rank = {c.trainer.lora.rank}): about {LORA_LR:g} to 1e-4"
        ),
        lambda c: c.trainer.lora.rank and c.trainer.optimizer.lr < LORA_LR,
    ),
    Pair(
        lambda c: (
            f"trainer.optimizer.warmup_steps = {c.trainer.optimizer.warmup_steps} is not "
            f"below the {_policy_steps(c)} steps of the policy: the full learning rate is never "
            "reached"
        ),
        lambda c: (
            _policy_steps(c) > 1
            and "warmup_steps" in c.trainer.optimizer.model_fields_set
            and c.trainer.optimizer.warmup_steps >= _policy_steps(c)
        ),
    ),
    Pair(
        lambda c: (
            'trainer.overlong = "mask" with trainer.quorum: stragglers are cut off, and then '
            "not trained on"
        ),
        lambda c: c.trainer.overlong is Overlong.MASK and c.trainer.quorum is not None,
    ),
    Pair(
        lambda c: (
            f"trainer.max_staleness = {c.trainer.max_staleness} is not below num_steps = "
            f"{c.trainer.num_steps}: every step may be trained on rollouts of version 0"
        ),
        lambda c: c.trainer.num_steps > 1 and c.trainer.max_staleness >= c.trainer.num_steps,
    ),
    Pair(
        lambda c: (
            f"trainer.max_flat_groups = {c.trainer.max_flat_groups} is below groups_per_step "
            f"= {c.trainer.groups_per_step}: the campaign may end before one step is full"
        ),
        lambda c: (
            c.trainer.max_flat_groups is not None
            and c.trainer.max_flat_groups < c.trainer.groups_per_step
        ),
    ),
    Pair(
        lambda c: (
            f"curriculum.low = {c.curriculum.low:g} and high = {c.curriculum.high:g}: no "
            f"solve rate of {c.trainer.group_size} rollouts lies between them; widen the band"
        ),
        _band_is_empty,
    ),
    Pair(
        lambda c: "curriculum.outside = 1 gives every task the same weight: the band does nothing",
        lambda c: c.curriculum.kind in ("band", "prioritized") and c.curriculum.outside == 1,
    ),
    Pair(
        lambda c: (
            f"trainer.checkpoint_every = {c.trainer.checkpoint_every} is not below num_steps "
            f"= {c.trainer.num_steps}: a crash repeats every step"
        ),
        lambda c: c.trainer.num_steps > 1 and c.trainer.checkpoint_every >= c.trainer.num_steps,
    ),
    Pair(
        lambda c: (
            f"evaluation.every_steps = {c.evaluation.every_steps} is more than num_steps = "
            f"{c.trainer.num_steps}: only the first and the last version are measured"
        ),
        lambda c: (
            c.evaluation.measured
            and c.trainer.num_steps > 1
            and c.evaluation.every_steps > c.trainer.num_steps
            and "every_steps" in c.evaluation.model_fields_set
        ),
    ),
    Pair(
        lambda c: (
            "trainer.keep_best keeps what evaluations measured, and evaluation.splits is "
            "empty: nothing is kept"
        ),
        lambda c: c.trainer.keep_best and not c.evaluation.measured,
    ),
    Pair(
        lambda c: (
            f"tasks.num_train = {c.tasks.num_train} is fewer than trainer.groups_per_step = "
            f"{c.trainer.groups_per_step}: a step has a task more than once"
        ),
        lambda c: c.tasks.source == BUNDLED and c.tasks.num_train < c.trainer.groups_per_step,
    ),
)


def _policy_steps(config: Together) -> int:
    critic = config.trainer.critic
    return config.trainer.num_steps - (critic.warmup_steps if critic else 0)


def _idle(config: Together) -> Iterator[str]:
    """Things that are given twice or counted for nothing."""
    for split, sampling in config.evaluation.sampling.items():
        if idle := sampling.idle_at(sampling.temperature):
            yield f"evaluation.sampling.{split}.{idle}"
    for part in config.reward.parts:
        if not part.weight and any(other.weight for other in config.reward.parts):
            yield f'reward.parts "{part.label}" has the weight 0: it is computed and not counted'
    splits = config.evaluation.splits
    if twice := sorted({split for split in splits if splits.count(split) > 1}):
        yield f"evaluation.splits has {', '.join(twice)} more than once: it counts once"
