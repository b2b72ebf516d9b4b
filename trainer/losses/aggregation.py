"""How the losses of a batch's tokens become one number: a weight for each token. Pure.

Invariant: in the means over sequences a rollout counts once, however many branches it has: each of
its B branches has the share 1/B of it.
"""

from collections import Counter
from collections.abc import Sequence

from mainspring.config.training.algorithm import Aggregation


def token_weights(
    aggregation: Aggregation,
    num_tokens_N: Sequence[int],
    length: int | None = None,
    branches_N: Sequence[tuple[str, int]] | None = None,
) -> list[float]:
    """Weight of each action token of sample n in the batch's loss, from all samples' lengths.
    `length`: the constant of SEQ_MEAN_TOKEN_SUM_NORM. `branches_N`: the rollout and the branch of
    each sample, which may be one of several of its branch; None: each of another rollout."""
    if not num_tokens_N:
        return []
    if any(num_tokens < 1 for num_tokens in num_tokens_N):
        raise ValueError("a sample without action tokens has no place in the loss")
    if aggregation is Aggregation.TOKEN_MEAN:
        return [1 / sum(num_tokens_N)] * len(num_tokens_N)
    if branches_N is None:
        branches_N = [("", n) for n in range(len(num_tokens_N))]
        shares_N = [len(num_tokens_N)] * len(num_tokens_N)
    else:
        shares_N = _shared_by(branches_N)
    tokens_of: Counter[tuple[str, int]] = Counter()
    for branch, num_tokens in zip(branches_N, num_tokens_N, strict=True):
        tokens_of[branch] += num_tokens
    pairs = [(s, tokens_of[b]) for s, b in zip(shares_N, branches_N, strict=True)]
    match aggregation:
        case Aggregation.SEQ_MEAN_TOKEN_MEAN:
            return [1 / (num_shares * num_tokens) for num_shares, num_tokens in pairs]
        case Aggregation.SEQ_MEAN_TOKEN_SUM:
            return [1 / num_shares for num_shares, _ in pairs]
        case Aggregation.SEQ_MEAN_TOKEN_SUM_NORM:
            assert length is not None, "the configuration is refused without aggregation_length"
            return [1 / (num_shares * length) for num_shares, _ in pairs]


def _shared_by(branches_N: Sequence[tuple[str, int]]) -> list[int]:
    """Counts, for each sample, of its kind in the whole batch: rollouts times its branches."""
    branches = Counter(rollout for rollout, _ in set(branches_N))
    return [len(branches) * branches[rollout] for rollout, _ in branches_N]
