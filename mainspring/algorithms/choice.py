"""Which advantage, group filter, loss, correction and step engine a campaign names in [trainer].

Each is a name of the tables below, or one of your own as "package.module:attribute". Invariants:
what cannot be found, called or made is refused before the campaign is stored; what fails later is
the typed failure AlgorithmBroken, never a zero. Losses and engines need torch: the domain knows
where they are, and imports one only for the trainer, or to check one of your own.
"""

import inspect
import math
from collections.abc import Mapping, Sequence
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
from mainspring.config.named import find, find_class
from mainspring.config.trainer import TrainerConfig
from mainspring.config.training.algorithm import GAE
from mainspring.config.training.correction import NO_CORRECTION
from mainspring.config.training.parallel import MCORE, PLAIN, Device
from mainspring.errors import ConfigError
from mainspring.training.training_faults import algorithm_broken, raise_broken
from mainspring.trajectories.turn_places import TurnPlace

ADVANTAGES: dict[str, AdvantageEstimator] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
    "raft": raft,
    "step_wise": step_wise,
    GAE: gae,
}
FILTERS: dict[str, GroupFilter] = {"mixed": mixed, "none": none, "solved": solved}
LOSSES = {
    "clip": "trainer.losses.clip:clip",
    "dual_clip": "trainer.losses.dual_clip:dual_clip",
    "cispo": "trainer.losses.cispo:cispo",
    "gspo": "trainer.losses.gspo:gspo",
    "nll": "trainer.losses.nll:nll",
}
CORRECTIONS = {
    "tis": "trainer.corrections.tis:tis",
    "icepop": "trainer.corrections.icepop:icepop",
    "sequence_mask": "trainer.corrections.sequence_mask:sequence_mask",
}
ENGINES = {
    PLAIN: "trainer.engines.plain:PlainEngine",
    MCORE: "trainer.engines.mcore:McoreEngine",
}
ENGINE_METHODS = ("optimizer", "logprobs", "forward_backward")


def advantages_of(rewards_G: Sequence[float | None], trainer: TrainerConfig) -> list[float | None]:
    """[G] of one group by itself, by the campaign's estimator. Raises AlgorithmBroken."""
    what, estimate = _estimator(trainer)
    return _advantages(what, _called(what, estimate, tuple(rewards_G), trainer), rewards_G)


def advantages_of_batch(
    rewards_NG: Sequence[Sequence[float | None]], trainer: TrainerConfig
) -> list[list[float | None]]:
    """[G] of each group of a batch, by the campaign's estimator. Raises AlgorithmBroken."""
    what, estimate = _estimator(trainer)
    found_NG = [advantages_of(rewards_G, trainer) for rewards_G in rewards_NG]
    if not isinstance(estimate, BatchEstimator):
        return found_NG
    found: Any = _called(what, estimate.over_batch, found_NG, trainer)
    if not isinstance(found, list | tuple) or len(found) != len(rewards_NG):
        raise algorithm_broken(what, f"returned {found!r:.80} for {len(rewards_NG)} groups")
    return [_advantages(what, *pair) for pair in zip(found, rewards_NG, strict=True)]


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
    found: Any = _called(what, estimate.of_turns, tuple(rewards_G), turns_GN, trainer)
    if not isinstance(found, list | tuple) or len(found) != len(rewards_G):
        raise algorithm_broken(what, f"returned {found!r:.80} for {len(rewards_G)} rewards")
    for reward, turns, advantages in zip(rewards_G, turns_GN, found, strict=True):
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
    return [None if each is None else [float(advantage) for advantage in each] for each in found]


def _estimator(trainer: TrainerConfig) -> tuple[str, AdvantageEstimator]:
    """Name of the estimator in messages, and the estimator."""
    found = find("advantage", trainer.advantage, ADVANTAGES)
    return f"trainer.advantage {trainer.advantage!r}", found


def _advantages(what: str, found: Any, rewards_G: Sequence[float | None]) -> list[float | None]:
    if not isinstance(found, list | tuple) or len(found) != len(rewards_G):
        raise algorithm_broken(what, f"returned {found!r:.80} for {len(rewards_G)} rewards")
    for reward, advantage in zip(rewards_G, found, strict=True):
        if (advantage is None) != (reward is None):
            raise algorithm_broken(what, f"returned {advantage!r:.80} for the reward {reward}")
        if advantage is not None and not _is_finite(advantage):
            raise algorithm_broken(what, f"returned {advantage!r:.80}, expected a finite number")
    return [None if advantage is None else float(advantage) for advantage in found]


def is_usable(rewards_G: Sequence[float | None], trainer: TrainerConfig) -> bool:
    """Whether the campaign's filter lets a step use a group. Raises AlgorithmBroken."""
    what = f"trainer.filter {trainer.filter!r}"
    found = _called(what, find("filter", trainer.filter, FILTERS), tuple(rewards_G), trainer)
    if not isinstance(found, bool):
        raise algorithm_broken(what, f"returned {found!r:.80}, expected True or False")
    return found


def find_loss(trainer: TrainerConfig) -> Any:
    """A `trainer.losses.protocol.Loss`. Imports torch. Raises ConfigError."""
    return _located("loss", trainer.loss, LOSSES)


def find_correction(trainer: TrainerConfig) -> Any:
    """A `trainer.corrections.protocol.Correction`, None where the campaign has none. Imports torch.
    Raises ConfigError."""
    kind = trainer.correction.kind
    return None if kind == NO_CORRECTION else _located("correction", kind, CORRECTIONS)


def find_engine(trainer: TrainerConfig) -> Any:
    """A class that makes a `trainer.engines.protocol.StepEngine`. Imports torch. Raises
    ConfigError."""
    return _located("engine", trainer.engine_name, ENGINES)


def check_algorithms(trainer: TrainerConfig) -> None:
    """Raises ConfigError for the first that cannot be used."""
    takes = "(rewards_G, trainer)"
    for what, known in (("advantage", ADVANTAGES), ("filter", FILTERS)):
        name = getattr(trainer, what)
        found = find(what, name, known)
        _check_function(what, name, found, takes, ", ".join(known))
        if isinstance(found, BatchEstimator) and isinstance(found, TurnEstimator):
            raise ConfigError(
                f"{what} {name!r} has both over_batch and of_turns, which exclude each other",
                remedy="keep of_turns for an advantage of each turn, or over_batch for one of each "
                "rollout",
            )
    if trainer.loss not in LOSSES:
        found, known = find_loss(trainer), ", ".join(LOSSES)
        _check_function("loss", trainer.loss, found, "(tokens, trainer)", known)
    kind = trainer.correction.kind
    if kind not in (NO_CORRECTION, *CORRECTIONS):
        found, known = find_correction(trainer), ", ".join((NO_CORRECTION, *CORRECTIONS))
        _check_function("correction", kind, found, "(log_ratio, correction)", known)
    check_device(trainer)
    engine = trainer.engine_name
    if engine not in ENGINES:
        find_class("engine", engine, ENGINES, ENGINE_METHODS, "campaign, model, groups")


def check_device(trainer: TrainerConfig) -> None:
    """Raises ConfigError when the engine cannot run on the device."""
    if trainer.engine_name == MCORE and trainer.device is not Device.CUDA:
        raise ConfigError(
            f"trainer.engine 'mcore' needs trainer.device = 'cuda', found '{trainer.device}'",
            remedy="set engine = 'plain' for a CPU, or remove it",
        )


def _located(what: str, name: str, places: Mapping[str, str]) -> Any:
    return find(what, places.get(name, name), places)


def _called(what: str, function: Any, *given: object) -> Any:
    try:
        return function(*given)
    except Exception as error:
        raise_broken(what, error)


def _is_finite(value: object) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


def _check_function(what: str, name: str, found: Any, given: str, known: str) -> None:
    remedy = f"write it as `def name{given}` (docs/extending.md), or choose from {known}"
    is_coroutine = inspect.iscoroutinefunction(found)
    # A class could be called too, and would give an object instead of an answer.
    if not callable(found) or inspect.isclass(found) or is_coroutine:
        kind = "coroutine function" if is_coroutine else type(found).__name__
        raise ConfigError(f"{what} {name!r} is a {kind}, expected a plain function", remedy=remedy)
    try:
        inspect.signature(found).bind(None, None)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{what} {name!r} cannot be called as {given}: {error}", remedy=remedy
        ) from None
