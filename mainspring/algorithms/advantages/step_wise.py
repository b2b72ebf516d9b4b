"""Step-wise advantages: each turn is compared with the turns of the same number in its group.

A turn's return is its rollout's reward, times `turn_discount` for each turn that follows on its
branch: rewards are given at the end alone, so this is the discounted sum of what is still to come.
The returns of the turns with the same number of turns before them, over all scored rollouts of the
group, are one step group; a turn's advantage is its return minus the group's mean, divided by its
standard deviation as `std` has it. All tokens of the turn get it. Every rollout counts once: one
with several branches may have several turns in a step group, which share its weight in mean and
deviation.

With `turn_discount = 1` the baseline of turn n is the mean reward of the rollouts that reached turn
n: a rollout is no longer compared with those that had ended by then.

Equals rLLM's mode "per_step" with GRPO and `std = "unbiased"`: Monte Carlo returns, grouped by task
and step. Two differences: a step group of one rollout gives 0 (there its return), and one of equal
returns gives exact zeros. The returns are GiGPO's (arXiv 2505.10978, equation 5); its step groups
are of equal states, which the output of commands seldom is.
"""

from collections import defaultdict
from collections.abc import Sequence

from mainspring.algorithms.advantages.grpo import compared, grpo
from mainspring.config.trainer import TrainerConfig
from mainspring.trajectories.turn_places import TurnPlace


class StepWise:
    def __call__(
        self, rewards_G: Sequence[float | None], trainer: TrainerConfig
    ) -> list[float | None]:
        """Advantages of rollouts with one turn each."""
        return grpo(rewards_G, trainer)

    def of_turns(
        self,
        rewards_G: Sequence[float | None],
        turns_GN: Sequence[Sequence[TurnPlace]],
        trainer: TrainerConfig,
    ) -> list[list[float] | None]:
        advantages: list[list[float] | None] = []
        # Of a step group, by rollout: each of its turns with its return.
        groups: defaultdict[int, dict[int, list[tuple[int, float]]]] = defaultdict(dict)
        for rollout, (reward, turns) in enumerate(zip(rewards_G, turns_GN, strict=True)):
            advantages.append(None if reward is None else [0.0] * len(turns))
            if reward is None:
                continue
            for number, turn in enumerate(turns):
                turn_return = reward * trainer.turn_discount**turn.num_after
                groups[turn.index].setdefault(rollout, []).append((number, turn_return))
        for turns_RN in groups.values():
            returns_RN = [[value for _, value in turns] for turns in turns_RN.values()]
            for (rollout, turns), advantages_N in zip(
                turns_RN.items(), compared(returns_RN, trainer), strict=True
            ):
                of_rollout = advantages[rollout]
                assert of_rollout is not None
                for (number, _), advantage in zip(turns, advantages_N, strict=True):
                    of_rollout[number] = advantage
        return advantages


step_wise = StepWise()
