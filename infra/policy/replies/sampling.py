"""Sampling one reply in tokens, under a policy version that was asked for.

Invariant: tokens that an earlier attempt had are continued, never sampled again, unless a version
that is asked for alone did not make them. Used by `token_policy`.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

from infra.policy.engines.partial import UnknownWeights
from infra.policy.protocol import Completion, Engines, ReplyRequest, SamplingParams
from infra.policy.weight_label import WeightLabel

MIN_REPLY_TOKENS = 8
"""Less room than this for a reply ends the rollout: no command fits."""

WeightsOf = Callable[[int | None], Awaitable[tuple[Path, WeightLabel]]]
"""A policy version of the campaign; the newest for None."""


async def sample(
    engines: Engines,
    weights_of: WeightsOf,
    ask: ReplyRequest,
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
