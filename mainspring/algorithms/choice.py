"""Which advantage, group filter, loss, correction and step engine a campaign names in [trainer].

Each is a name of the tables below, or one of your own as "package.module:attribute". Invariants:
what cannot be found, called or made is refused before the campaign is stored; what fails later is
the typed failure AlgorithmBroken, never a zero. Losses and engines need torch: the domain knows
where they are, and imports one only for the trainer, or to check one of your own.
"""

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

from mainspring.algorithms.advantages.dr_grpo import dr_grpo
from mainspring.algorithms.advantages.gae import gae
from mainspring.algorithms.advantages.grpo import grpo
from mainspring.algorithms.advantages.protocol import (
    AdvantageEstimator,
    BatchEstimator,
    TurnEstimator,
)
from mainspring.algorithms.advantages.raft import raft
from mainspring.algorithms.advantages.reinforce_plus_plus import (
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
)
from mainspring.algorithms.advantages.rloo import rloo
from mainspring.algorithms.advantages.step_wise import step_wise
from mainspring.algorithms.filters.mixed import mixed
from mainspring.algorithms.filters.none import none
from mainspring.algorithms.filters.protocol import GroupFilter
from mainspring.algorithms.filters.solved import solved
from mainspring.config.registry import Registry
from mainspring.config.trainer import TrainerConfig
from mainspring.config.training.algorithm import GAE
from mainspring.config.training.correction import NO_CORRECTION
from mainspring.config.training.parallel import FSDP, MCORE, PLAIN, Device
from mainspring.errors import ConfigError
from mainspring.training.training_faults import algorithm_broken, raise_broken
from mainspring.trajectories.turn_places import TurnPlace


def _compares_in_one_way(what: str, estimate: Any) -> None:
    """Raises ConfigError."""
    if isinstance(estimate, BatchEstimator) and isinstance(estimate, TurnEstimator):
        raise ConfigError(
            f"{what} has both over_batch and of_turns, which exclude each other",
            remedy="keep of_turns for an advantage of each turn, or over_batch for one of each "
            "rollout",
        )


ADVANTAGES: Registry[AdvantageEstimator] = Registry(
    "advantage",
    (
        ("grpo", grpo),
        ("dr_grpo", dr_grpo),
        ("rloo", rloo),
        ("reinforce_plus_plus", reinforce_plus_plus),
        ("reinforce_plus_plus_baseline", reinforce_plus_plus_baseline),
        ("raft", raft),
        ("step_wise", step_wise),
        (GAE, gae),
    ),
    takes="rewards_G, trainer",
    require=_compares_in_one_way,
)
FILTERS: Registry[GroupFilter] = Registry(
    "filter",
    (("mixed", mixed), ("none", none), ("solved", solved)),
    takes="rewards_G, trainer",
)
LOSSES: Registry[Any] = Registry(
    "loss",
    (
        ("clip", "trainer.losses.clip:clip"),
        ("dual_clip", "trainer.losses.dual_clip:dual_clip"),
        ("cispo", "trainer.losses.cispo:cispo"),
        ("gspo", "trainer.losses.gspo:gspo"),
        ("nll", "trainer.losses.nll:nll"),
    ),
    takes="tokens, trainer",
)
CORRECTIONS: Registry[Any] = Registry(
    "correction",
    (
        ("tis", "trainer.corrections.tis:tis"),
        ("icepop", "trainer.corrections.icepop:icepop"),
        ("sequence_mask", "trainer.corrections.sequence_mask:sequence_mask"),
    ),
    takes="log_ratio, correction",
    also=(NO_CORRECTION,),
)
ENGINES: Registry[Any] = Registry(
    "engine",
    (
        (PLAIN, "trainer.engines.plain:PlainEngine"),
        (MCORE, "trainer.engines.mcore:McoreEngine"),
        (FSDP, "trainer.engines.fsdp.engine:FsdpEngine"),
    ),
    takes="campaign, model, groups",
    methods=("optimizer", "logprobs", "forward_backward"),
)


def advantages_of(rewards_G: Sequence[float | None], trainer: TrainerConfig) -> list[float | None]:
    """[G] of one group by itself, by the campaign's estimator. Raises AlgorithmBroken."""
    what, estimate = _estimator(trainer)
    return _advantages(what, _called(what, estimate, tuple(rewards_G), trainer), rewards_G)


def advantages_of_batch(
    rewards_NG: Sequence[Sequence[float | None]], trainer: TrainerConfig
) -> list[list[float | None]]:
    """[G] of each group of a batch, by the campaign's estimator. Raises AlgorithmBroken."""
    what, estimate = _estimator(trainer)
    advantages_NG = [advantages_of(rewards_G, trainer) for rewards_G in rewards_NG]
    if not isinstance(estimate, BatchEstimator):
        return advantages_NG
    answer: Any = _called(what, estimate.over_batch, advantages_NG, trainer)
    if not isinstance(answer, list | tuple) or len(answer) != len(rewards_NG):
        raise algorithm_broken(what, f"returned {answer!r:.80} for {len(rewards_NG)} groups")
    return [_advantages(what, *pair) for pair in zip(answer, rewards_NG, strict=True)]


def has_turn_advantages(trainer: TrainerConfig) -> bool:
    """Whether the campaign's estimator gives each turn an advantage of its own."""
    return isinstance(_estimator(trainer)[1], TurnEstimator)


def advantages_of_turns(
    rewards_G: Sequence[float | None],
    turns_GN: Sequence[Sequence[TurnPlace]],
    trainer: TrainerConfig,
) -> list[list[float] | None]:
    """[N] of each rollout of one group, by an estimator that has them. Raises AlgorithmBroken."""
    what, estimate = _estimator(trainer)
    assert isinstance(estimate, TurnEstimator), what
    answer: Any = _called(what, estimate.of_turns, tuple(rewards_G), turns_GN, trainer)
    if not isinstance(answer, list | tuple) or len(answer) != len(rewards_G):
        raise algorithm_broken(what, f"returned {answer!r:.80} for {len(rewards_G)} rewards")
    for reward, turns, advantages in zip(rewards_G, turns_GN, answer, strict=True):
        if (advantages is None) != (reward is None):
            raise algorithm_broken(what, f"returned {advantages!r:.80} for the reward {reward}")
        if advantages is None:
            continue
        if not isinstance(advantages, list | tuple) or len(advantages) != len(turns):
            raise algorithm_broken(what, f"returned {advantages!r:.80} for {len(turns)} turns")
        for advantage in advantages:
            if not _is_finite(advantage):
                raise algorithm_broken(
                    what, f"returned {advantage!r:.80}, expected a finite number"
                )
    return [
        None if values is None else [float(advantage) for advantage in values] for values in answer
    ]


def _estimator(trainer: TrainerConfig) -> tuple[str, AdvantageEstimator]:
    """Name of the estimator in messages, and the estimator."""
    return f"trainer.advantage {trainer.advantage!r}", ADVANTAGES.find(trainer.advantage)


def _advantages(what: str, answer: Any, rewards_G: Sequence[float | None]) -> list[float | None]:
    if not isinstance(answer, list | tuple) or len(answer) != len(rewards_G):
        raise algorithm_broken(what, f"returned {answer!r:.80} for {len(rewards_G)} rewards")
    for reward, advantage in zip(rewards_G, answer, strict=True):
        if (advantage is None) != (reward is None):
            raise algorithm_broken(what, f"returned {advantage!r:.80} for the reward {reward}")
        if advantage is not None and not _is_finite(advantage):
            raise algorithm_broken(what, f"returned {advantage!r:.80}, expected a finite number")
    return [None if advantage is None else float(advantage) for advantage in answer]


def is_usable(rewards_G: Sequence[float | None], trainer: TrainerConfig) -> bool:
    """Whether the campaign's filter lets a step use a group. Raises AlgorithmBroken."""
    what = f"trainer.filter {trainer.filter!r}"
    answer = _called(what, FILTERS.find(trainer.filter), tuple(rewards_G), trainer)
    if not isinstance(answer, bool):
        raise algorithm_broken(what, f"returned {answer!r:.80}, expected True or False")
    return answer


def find_loss(trainer: TrainerConfig) -> Any:
    """A `trainer.losses.protocol.Loss`. Imports torch. Raises ConfigError."""
    return LOSSES.find(trainer.loss)


def find_correction(trainer: TrainerConfig) -> Any:
    """A `trainer.corrections.protocol.Correction`, None where the campaign has none. Imports torch.
    Raises ConfigError."""
    kind = trainer.correction.kind
    return None if kind == NO_CORRECTION else CORRECTIONS.find(kind)


def find_engine(trainer: TrainerConfig) -> Any:
    """A class that makes a `trainer.engines.protocol.StepEngine`. Imports torch. Raises
    ConfigError."""
    return ENGINES.find(trainer.engine_name)


def check_algorithms(trainer: TrainerConfig) -> None:
    """Raises ConfigError for the first that cannot be used."""
    ADVANTAGES.check(trainer.advantage)
    FILTERS.check(trainer.filter)
    LOSSES.check(trainer.loss)
    CORRECTIONS.check(trainer.correction.kind)
    check_device(trainer)
    ENGINES.check(trainer.engine_name)


def check_device(trainer: TrainerConfig) -> None:
    """Raises ConfigError when the engine cannot run on the device."""
    if trainer.engine_name == MCORE and trainer.device is not Device.CUDA:
        raise ConfigError(
            f"trainer.engine 'mcore' needs trainer.device = 'cuda', found '{trainer.device}'",
            remedy="set engine = 'plain' for a CPU, or remove it",
        )


def _called(what: str, function: Any, *arguments: object) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        raise_broken(what, error)


def _is_finite(value: object) -> bool:
    return isinstance(value, Real) and math.isfinite(value)
