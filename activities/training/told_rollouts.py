"""Record of what a step did with each rollout of its batch, from the batch and from what the ranks
measured.

Invariant: every rollout of the batch is told of once, with its tokens or with the reason why it has
none; nothing here changes what is trained. Used by `step_batch` and by the training activities.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from infra.db.training.batches import BatchGroup, BatchRollout
from mainspring.ids import RolloutId
from mainspring.status import Untrained
from mainspring.training.trained_rollouts import (
    KeptCall,
    KeptSample,
    StepDetails,
    StoredGap,
    TokenGap,
    TrainedRollout,
)
from mainspring.trajectories.packed_call import TokenCall
from mainspring.trajectories.samples import Sample, kept_of
from mainspring.trajectories.tree import path_to


@dataclass(frozen=True, slots=True)
class SeenRollout:
    """A rollout of a batch, before it is known how many tokens of it are trained."""

    rollout: BatchRollout
    advantage: float | Mapping[int, float] | None
    """One number, or one for each of its trained calls; None: masked, or a critic gives it."""
    is_overlong: bool = False


@dataclass(frozen=True, slots=True)
class ToldStep:
    rollouts: list[TrainedRollout]
    gaps: list[StoredGap]
    kept: list[KeptCall]
    """Numbers of all tokens, where the campaign keeps them."""


def told_of(
    seen: Sequence[SeenRollout],
    of_all_ages: Sequence[Sample],
    samples: Sequence[Sample],
    *,
    is_warm_up: bool,
) -> list[TrainedRollout]:
    """`of_all_ages`: the samples before tokens that are too old became context. `is_warm_up`: the
    step trains the critic alone."""
    num_sampled: defaultdict[str, int] = defaultdict(int)
    for sample in of_all_ages:
        num_sampled[sample.rollout] += sample.num_action_tokens
    num_left: defaultdict[str, int] = defaultdict(int)
    num_trained: defaultdict[str, int] = defaultdict(int)
    for sample, is_kept in zip(samples, kept_of(samples), strict=True):
        num_left[sample.rollout] += sample.num_action_tokens
        if is_kept and not is_warm_up:
            num_trained[sample.rollout] += sample.num_action_tokens
    return [
        TrainedRollout(
            rollout=each.rollout.id,
            advantage=_mean(each),
            is_mean=isinstance(each.advantage, Mapping),
            num_trained_tokens=num_trained[each.rollout.id],
            masked_why=None
            if num_trained[each.rollout.id]
            else _why(each, num_sampled[each.rollout.id], num_left[each.rollout.id], is_warm_up),
            call_advantages=each.advantage if isinstance(each.advantage, Mapping) else None,
        )
        for each in seen
    ]


def with_measured(
    rollouts: Sequence[TrainedRollout],
    details: StepDetails,
    groups: Sequence[BatchGroup],
    samples: Sequence[Sample],
) -> ToldStep:
    """The same with the advantages that a critic gave, and the tokens with the largest gap by their
    place in the store."""
    given = details.advantages
    calls: dict[str, Sequence[TokenCall]] = {
        rollout.id: rollout.calls for group in groups for rollout in group.rollouts
    }
    return ToldStep(
        [
            replace(each, advantage=given[each.rollout], is_mean=True)
            if each.rollout in given
            else each
            for each in rollouts
        ],
        [_stored(gap, calls[gap.rollout]) for gap in details.gaps],
        [
            kept
            for place, of_sample in sorted(details.kept.items())
            for kept in _by_call(samples[place], of_sample, calls[samples[place].rollout])
        ],
    )


def _why(each: SeenRollout, num_sampled: int, num_left: int, is_warm_up: bool) -> Untrained:
    if each.rollout.reward is None:
        return Untrained.MASKED
    if not num_sampled:
        return Untrained.NO_TOKENS
    if each.is_overlong:
        return Untrained.OVERLONG
    if not num_left:
        return Untrained.STALE
    return Untrained.CRITIC_WARMUP if is_warm_up else Untrained.ZERO_ADVANTAGE


def _mean(each: SeenRollout) -> float | None:
    """Over the tokens of its calls, where these have advantages of their own."""
    if not isinstance(each.advantage, Mapping):
        return each.advantage
    lengths = {call.number: len(call.completion_ids) for call in each.rollout.calls}
    weights = [lengths.get(call, 0) for call in each.advantage]
    if not sum(weights):
        return None
    return float(np.average([*each.advantage.values()], weights=weights))


def _stored(gap: TokenGap, calls: Sequence[TokenCall]) -> StoredGap:
    call = next(
        call for call in reversed(path_to(calls, gap.branch)) if call.prompt_start <= gap.position
    )
    return StoredGap(
        rollout=RolloutId(gap.rollout),
        call=call.number,
        offset=gap.position - call.prompt_start - len(call.prompt_ids),
        served=gap.served,
        recomputed=gap.recomputed,
    )


def _by_call(sample: Sample, kept: KeptSample, calls: Sequence[TokenCall]) -> Iterator[KeptCall]:
    positions = np.flatnonzero(sample.action_mask)
    for call in path_to(calls, sample.branch):
        start = call.prompt_start + len(call.prompt_ids)
        first, last = np.searchsorted(positions, (start, call.end))
        if first == last:
            continue
        offsets = positions[first:last] - start
        length = len(call.completion_ids)
        entropies = kept.entropies
        yield KeptCall(
            rollout=RolloutId(sample.rollout),
            call=call.number,
            logprobs=_placed(kept.logprobs[first:last], offsets, length),
            entropies=None
            if entropies is None
            else _placed(entropies[first:last], offsets, length),
        )


def _placed(
    values: NDArray[np.float32], offsets: NDArray[np.int64], length: int
) -> NDArray[np.float32]:
    placed = np.full(length, np.nan, np.float32)
    placed[offsets] = values
    return placed
