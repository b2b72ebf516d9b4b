"""Which advantage, group filter, loss and step engine a campaign names in [trainer].

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
from mainspring.algorithms.advantages.grpo import grpo
from mainspring.algorithms.advantages.protocol import AdvantageEstimator
from mainspring.algorithms.filters.mixed import mixed
from mainspring.algorithms.filters.none import none
from mainspring.algorithms.filters.protocol import GroupFilter
from mainspring.config.parallel import MCORE, PLAIN, Device
from mainspring.config.trainer import TrainerConfig
from mainspring.errors import ConfigError
from mainspring.named import find, find_class
from mainspring.training_faults import algorithm_broken

ADVANTAGES: dict[str, AdvantageEstimator] = {"grpo": grpo, "dr_grpo": dr_grpo}
FILTERS: dict[str, GroupFilter] = {"mixed": mixed, "none": none}
LOSSES = {"clip": "trainer.losses.clip:clip"}
ENGINES = {
    PLAIN: "trainer.engines.plain:PlainEngine",
    MCORE: "trainer.engines.mcore:McoreEngine",
}
ENGINE_METHODS = ("optimizer", "logprobs", "forward_backward")


def advantages_of(rewards_G: Sequence[float | None], trainer: TrainerConfig) -> list[float | None]:
    """[G] by the campaign's estimator. Raises AlgorithmBroken."""
    what = f"trainer.advantage {trainer.advantage!r}"
    estimate = find("advantage", trainer.advantage, ADVANTAGES)
    found = _called(what, estimate, rewards_G, trainer)
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
    found = _called(what, find("filter", trainer.filter, FILTERS), rewards_G, trainer)
    if not isinstance(found, bool):
        raise algorithm_broken(what, f"returned {found!r:.80}, expected True or False")
    return found


def find_loss(trainer: TrainerConfig) -> Any:
    """A `trainer.losses.protocol.Loss`. Imports torch. Raises ConfigError."""
    return _located("loss", trainer.loss, LOSSES)


def find_engine(trainer: TrainerConfig) -> Any:
    """A class that makes a `trainer.engines.protocol.StepEngine`. Imports torch. Raises
    ConfigError."""
    return _located("engine", trainer.engine_name, ENGINES)


def check_algorithms(trainer: TrainerConfig) -> None:
    """Raises ConfigError for the first of the four that cannot be used."""
    takes = "(rewards_G, trainer)"
    for what, known in (("advantage", ADVANTAGES), ("filter", FILTERS)):
        found = find(what, getattr(trainer, what), known)
        _check_function(what, found, trainer, takes, ", ".join(known))
    if trainer.loss not in LOSSES:
        found = find_loss(trainer)
        _check_function("loss", found, trainer, "(tokens, trainer)", ", ".join(LOSSES))
    engine = trainer.engine_name
    if engine == MCORE and trainer.device is not Device.CUDA:
        raise ConfigError(
            f"trainer.engine 'mcore' needs trainer.device = 'cuda', found '{trainer.device}'",
            remedy="set engine = 'plain' for a CPU, or remove it",
        )
    if engine not in ENGINES:
        find_class("engine", engine, ENGINES, ENGINE_METHODS, "campaign, model, groups")


def _located(what: str, name: str, places: Mapping[str, str]) -> Any:
    return find(what, places.get(name, name), places)


def _called(
    what: str, function: Any, rewards_G: Sequence[float | None], trainer: TrainerConfig
) -> Any:
    try:
        return function(tuple(rewards_G), trainer)
    except Exception as error:
        raise algorithm_broken(what, f"raised {type(error).__name__}: {error}") from error


def _is_finite(value: object) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


def _check_function(what: str, found: Any, trainer: TrainerConfig, given: str, known: str) -> None:
    name = getattr(trainer, what)
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
