"""Step-wise advantages: each turn is compared with the turns of the same number in its group.

A turn's value is its own reward (of a judge of turns, or of an environment) plus its rollout's
reward for the end, times `turn_discount` for each turn that follows on its branch. The values of
the turns with the same number of turns before them, over all scored rollouts of the group, are one
step group; a turn's advantage is its value minus the group's mean, divided by its standard
deviation as `std` has it. All tokens of the turn get it.

- A step group of one rollout has nothing to be compared with: its turns keep their value.
- A step group of equal values gives exact zeros.
- A turn whose reward is missing has the advantage 0 and is in no mean.
- Every rollout counts once: one with several branches may have several turns in a step group, which
  share its weight in mean and deviation.

With `turn_discount = 1` the baseline of turn n is the mean of the rollouts that reached turn n: a
rollout is no longer compared with those that had ended by then.

With `std = "population"` these are the rules of the process rewards in OpenClaw-RL's recipe for
software engineering, but for one: scores belong to the call that they were given to, also after a
reply that ran nothing. Without rewards of turns it equals rLLM's mode "per_step" with GRPO and
`std = "unbiased"`, but for exact zeros. The returns are GiGPO's (arXiv 2505.10978, equation 5); its
step groups are of equal states, which the output of commands seldom is.
"""

from collections import defaultdict
from collections.abc import Sequence

from mainspring.algorithms.advantages.grpo import compared, grpo
from mainspring.config.trainer import TrainerConfig
from mainspring.trajectories.turn_places import TurnPlace

STD_EPS = 1e-6
"""Added to the standard deviation, of both kinds."""


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
        # Of a step group, by rollout: each of its turns with its value.
        groups: defaultdict[int, dict[int, list[tuple[int, float]]]] = defaultdict(dict)
        for rollout, (reward, turns) in enumerate(zip(rewards_G, turns_GN, strict=True)):
            advantages.append(None if reward is None else [0.0] * len(turns))
            if reward is None:
                continue
            for number, turn in enumerate(turns):
                if turn.reward is not None:
                    value = turn.reward + reward * trainer.turn_discount**turn.num_after
                    groups[turn.index].setdefault(rollout, []).append((number, value))
        for turns_RN in groups.values():
            values_RN = [[value for _, value in turns] for turns in turns_RN.values()]
            advantages_RN = (
                compared(values_RN, trainer, STD_EPS) if len(values_RN) > 1 else values_RN
            )
            for (rollout, turns), advantages_N in zip(turns_RN.items(), advantages_RN, strict=True):
                of_rollout = advantages[rollout]
                assert of_rollout is not None
                for (number, _), advantage in zip(turns, advantages_N, strict=True):
                    of_rollout[number] = advantage
        return advantages


step_wise = StepWise()
