"""A sample: a branch of a rollout as the trainer sees it, or one of its calls with what led to it.

Pure; numpy only. Arrays of a sample all have its length [T]; position t describes token t itself
(the shift by one happens where logits are computed, nowhere else).
"""

import hashlib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mainspring.trajectories.packed_call import TokenCall
from mainspring.trajectories.tree import branches, check_tree, with_parents
from mainspring.trajectories.turns import BrokenTrajectory

NOT_SAMPLED = -1
"""Policy version of tokens that no policy sampled (prompts and observations)."""


@dataclass(frozen=True, slots=True)
class Sample:
    rollout: str
    branch: int
    """Number of the last call of its branch; samples of one call each share it."""
    token_ids: NDArray[np.int32]
    """[T] prompt, replies and observations in order."""
    action_mask: NDArray[np.bool_]
    """[T] True where the policy sampled the token, and it is trained in this sample."""
    logprobs: NDArray[np.float32]
    """[T] as served; 0 where not sampled."""
    versions: NDArray[np.int32]
    """[T] policy version of each sampled token, NOT_SAMPLED elsewhere."""
    advantages: NDArray[np.float32]
    """[T] how much better than its group each action token's rollout or turn was; 0 elsewhere."""
    reward: float | None = None
    """Reward of its rollout, for a critic, which makes advantages of it; None: there is no critic,
    or the sample is not trained on."""
    turn_rewards: tuple[tuple[int, float], ...] = ()
    """Rewards of its trained turns for a critic: the position of a turn's last token, and what is
    given with it. Then `reward` is what is left for the end."""

    @property
    def num_action_tokens(self) -> int:
        return int(self.action_mask.sum())

    @property
    def carries_advantage(self) -> bool:
        """Whether it is trained on: a token of it has a gradient, or a critic may give it one."""
        return self.is_for_critic or bool(self.advantages.any())

    @property
    def is_for_critic(self) -> bool:
        """Also with the advantage 0: the critic learns from it."""
        return self.reward is not None and bool(self.action_mask.any())


def samples_of(
    rollout: str,
    calls: Sequence[TokenCall],
    advantage: float | Mapping[int, float] = 0.0,
    *,
    reward: float | None = None,
    turn_rewards: Mapping[int, float] | None = None,
    trained: Container[int] | None = None,
    per_call: bool = False,
) -> list[Sample]:
    """A sample for each branch, in the order of the branches. Tokens that branches share are
    trained once: in the first one, and are context in the others. `per_call`: instead of one for a
    branch, one for each call that is trained there, which ends with it.

    `advantage`: of all tokens, or of those of each trained call, by its number. `reward`: for a
    critic; every branch has it, and the critic gives it once. `turn_rewards`: for a critic, by its
    call.
    `trained`: numbers of the calls that are trained; None: all. Others are context of those that
    extend them; where nothing trained does, they are in no sample.

    Raises BrokenTrajectory when the calls do not line up, or those of the samples have no tokens.
    """
    check_tree(rollout, calls)
    chosen = {call.number for call in calls if trained is None or call.number in trained}
    used = with_parents(calls, chosen)
    for call in used:
        if not len(call.completion_ids):
            raise BrokenTrajectory(
                f"rollout {rollout}, call {call.number}: its reply came as text, without the "
                "tokens that were sampled: it cannot be trained on",
                remedy='train on engines of policy.api = "sglang" or "vllm"; endpoints of the '
                "OpenAI API are for evaluations",
            )
    samples: list[Sample] = []
    for path in branches(used):
        new = [call for call in path if call.number in chosen]
        shares = [[call] for call in new] if per_call else [new]
        for share in shares:
            given = tuple(
                (call.end - 1, turn_rewards[call.number])
                for call in share
                if turn_rewards and call.number in turn_rewards
            )
            tokens = path[: path.index(share[-1]) + 1] if per_call else path
            sample = _sample(rollout, tokens, share, advantage)
            samples.append(
                replace(sample, branch=path[-1].number, reward=reward, turn_rewards=given)
            )
        chosen.difference_update(call.number for call in new)
    return samples


def kept_of(samples: Sequence[Sample]) -> list[bool]:
    """Which samples a step trains on: those of branches of which a part carries advantage, so that
    a branch counts the same as one sample and as a sample for each call."""
    carrying = {(each.rollout, each.branch) for each in samples if each.carries_advantage}
    return [
        (each.rollout, each.branch) in carrying and bool(each.action_mask.any()) for each in samples
    ]


def _sample(
    rollout: str,
    path: Sequence[TokenCall],
    trained: Sequence[TokenCall],
    advantage: float | Mapping[int, float],
) -> Sample:
    length = path[-1].end
    token_ids = np.zeros(length, np.int32)
    action_mask = np.zeros(length, np.bool_)
    logprobs = np.zeros(length, np.float32)
    versions = np.full(length, NOT_SAMPLED, np.int32)
    advantages = np.zeros(length, np.float32)
    for call in path:
        middle = call.prompt_start + len(call.prompt_ids)
        token_ids[call.prompt_start : middle] = call.prompt_ids
        token_ids[middle : call.end] = call.completion_ids
    for call in trained:
        middle = call.prompt_start + len(call.prompt_ids)
        action_mask[middle : call.end] = True
        logprobs[middle : call.end] = call.logprobs
        of_call = advantage[call.number] if isinstance(advantage, Mapping) else advantage
        advantages[middle : call.end] = of_call
        for span in call.spans:
            versions[middle + span.start : middle + span.end] = span.version
    return Sample(rollout, path[-1].number, token_ids, action_mask, logprobs, versions, advantages)


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
        advantages=np.where(old, np.float32(0), sample.advantages),
    )


def digest(samples: Iterable[Sample]) -> str:
    """Digest of everything that training takes from them, in their order, and of whose they are."""
    return _digest((f"{sample.rollout} {sample.branch}", sample) for sample in samples)


def content_digest(samples: Iterable[Sample]) -> str:
    """Digest of everything that training takes from them, in their order: equal in two campaigns
    whose rollouts have other ids and numbers, and the same content."""
    return _digest(("", sample) for sample in samples)


def _digest(samples: Iterable[tuple[str, Sample]]) -> str:
    sha256 = hashlib.sha256()
    for name, sample in samples:
        sha256.update(f"{name} {len(sample.token_ids)}".encode())
        if sample.reward is not None:
            sha256.update(f" {sample.reward!r}".encode())
        if sample.turn_rewards:
            sha256.update(f" {sample.turn_rewards!r}".encode())
        arrays = (sample.token_ids, sample.action_mask, sample.logprobs, sample.versions)
        for values in (*arrays, sample.advantages):
            sha256.update(np.ascontiguousarray(values).tobytes())
    return sha256.hexdigest()
