"""How the losses of a batch's tokens become one number: a weight for each token. Pure."""

from collections.abc import Sequence

from mainspring.config.algorithm import Aggregation


def token_weights(
    aggregation: Aggregation, num_tokens_N: Sequence[int], length: int | None = None
) -> list[float]:
    """Weight of each action token of sample n in the batch's loss, from all samples' lengths.
    `length`: the constant of SEQ_MEAN_TOKEN_SUM_NORM."""
    if not num_tokens_N:
        return []
    if any(num_tokens < 1 for num_tokens in num_tokens_N):
        raise ValueError("a sample without action tokens has no place in the loss")
    match aggregation:
        case Aggregation.TOKEN_MEAN:
            return [1 / sum(num_tokens_N)] * len(num_tokens_N)
        case Aggregation.SEQ_MEAN_TOKEN_MEAN:
            return [1 / (len(num_tokens_N) * num_tokens) for num_tokens in num_tokens_N]
        case Aggregation.SEQ_MEAN_TOKEN_SUM:
            return [1 / len(num_tokens_N)] * len(num_tokens_N)
        case Aggregation.SEQ_MEAN_TOKEN_SUM_NORM:
            assert length is not None, "the configuration is refused without aggregation_length"
            return [1 / (len(num_tokens_N) * length)] * len(num_tokens_N)
