"""A sample: one rollout as the trainer sees it, and how recorded turns become one.

Pure; numpy only. Arrays of a sample all have its length [T]; position t describes token t itself
(the shift by one happens where logits are computed, nowhere else).
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mainspring.trajectories.turns import BrokenTrajectory, Generation, check_contiguous

NOT_SAMPLED = -1
"""Policy version of tokens that no policy sampled (prompts and observations)."""


@dataclass(frozen=True, slots=True)
class Sample:
    rollout: str
    token_ids: NDArray[np.int32]
    """[T] prompt, replies and observations in order."""
    action_mask: NDArray[np.bool_]
    """[T] True where the policy sampled the token."""
    logprobs: NDArray[np.float32]
    """[T] as served; 0 where not sampled."""
    versions: NDArray[np.int32]
    """[T] policy version of each sampled token, NOT_SAMPLED elsewhere."""
    advantage: float = 0.0

    @property
    def num_action_tokens(self) -> int:
        return int(self.action_mask.sum())


def sample_from_turns(
    rollout: str, generations: list[Generation], advantage: float = 0.0
) -> Sample:
    """Raises BrokenTrajectory when the turns do not line up, or have no tokens."""
    check_contiguous(rollout, generations)
    for generation in generations:
        if not generation.completion_ids:
            raise BrokenTrajectory(
                f"rollout {rollout}, turn {generation.turn}: its reply came as text, without the "
                "tokens that were sampled: it cannot be trained on",
                remedy='train on engines of policy.api = "sglang"; endpoints of the OpenAI API are '
                "for evaluations",
            )
    length = generations[-1].end if generations else 0
    token_ids = np.zeros(length, np.int32)
    action_mask = np.zeros(length, np.bool_)
    logprobs = np.zeros(length, np.float32)
    versions = np.full(length, NOT_SAMPLED, np.int32)
    for generation in generations:
        start = generation.prompt_start
        middle = start + len(generation.prompt_ids)
        token_ids[start:middle] = generation.prompt_ids
        token_ids[middle : generation.end] = generation.completion_ids
        action_mask[middle : generation.end] = True
        logprobs[middle : generation.end] = generation.logprobs
        for span in generation.spans:
            versions[middle + span.start : middle + span.end] = span.version
    return Sample(rollout, token_ids, action_mask, logprobs, versions, advantage)


def without_tokens_before(sample: Sample, version: int) -> Sample:
    """The same sequence; tokens sampled under older versions than `version` are context now."""
    old = sample.action_mask & (sample.versions < version)
    if not old.any():
        return sample
    return replace(
        sample,
        action_mask=sample.action_mask & ~old,
        logprobs=np.where(old, np.float32(0), sample.logprobs),
        versions=np.where(old, np.int32(NOT_SAMPLED), sample.versions),
    )


def digest(samples: Iterable[Sample]) -> str:
    """Of everything that training takes from them, in their order."""
    found = hashlib.sha256()
    for sample in samples:
        found.update(f"{sample.rollout} {sample.advantage!r} {len(sample.token_ids)}".encode())
        for values in (sample.token_ids, sample.action_mask, sample.logprobs, sample.versions):
            found.update(np.ascontiguousarray(values).tobytes())
    return found.hexdigest()
