"""Sampling one reply in tokens, under a policy version that was asked for.

Invariant: tokens that an earlier attempt had are continued, never sampled again, unless a version
that is asked for alone did not make them. Used by the policies in tokens.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from infra.policy.engines.partial import UnknownWeights
from infra.policy.protocol import Completion, Engines, Keep, SamplingParams, Versions
from infra.policy.weight_label import WeightLabel
from mainspring.ids import RolloutId
from mainspring.trajectories.turns import PartialCall

MIN_REPLY_TOKENS = 8
"""Less room than this for a reply ends the rollout: no command fits."""

WeightsOf = Callable[[int | None], Awaitable[tuple[Path, WeightLabel]]]
"""A policy version of the campaign; the newest for None."""


class Sampling(Protocol):
    """How a reply is sampled, and what is known of it: fields of `protocol.ReplyRequest`."""

    @property
    def rollout(self) -> RolloutId: ...
    @property
    def request_id(self) -> str: ...
    @property
    def temperature(self) -> float: ...
    @property
    def versions(self) -> Versions: ...
    @property
    def seed(self) -> int | None: ...
    @property
    def begun(self) -> PartialCall | None: ...
    @property
    def keep(self) -> Keep | None: ...
    @property
    def num_closed(self) -> int: ...


async def sample(
    engines: Engines,
    weights_of: WeightsOf,
    ask: Sampling,
    input_ids: list[int],
    *,
    max_new_tokens: int,
    stop_token_ids: tuple[int, ...],
) -> Completion:
    """One completion under a version that was asked for; other engines are given one first."""
    params = SamplingParams(
        max_new_tokens=max_new_tokens,
        temperature=ask.temperature,
        stop_token_ids=stop_token_ids,
        seed=ask.seed,
    )
    begun, num_closed = ask.begun, ask.num_closed
    fit = ask.versions.of_earlier_tokens
    if begun is not None and not all(fit.admit(span.version) for span in begun.spans):
        begun = None
    while True:
        try:
            return await engines.generate(
                input_ids,
                params,
                request_id=ask.request_id,
                sticky=ask.rollout,
                versions=ask.versions,
                begun=begun,
                keep=ask.keep,
                num_closed=num_closed,
            )
        except UnknownWeights as stale:
            begun, num_closed = stale.begun or begun, max(num_closed, stale.num_closed)
            weights, label = await weights_of(ask.versions.at_least if ask.versions.only else None)
            await engines.reconcile(stale.engine, weights, label)
