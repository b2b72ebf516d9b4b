"""The CPU engine's distributions against those that numpy computes by SGLang's definitions, and the
stop strings that end a reply."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from engine.sampling import sample
from engine.sequences import (
    InvalidRequest,
    SamplingOptions,
    SchemaViolation,
    Sequence,
    StopStrings,
    parse_options,
)

SIZE = 12
PROMPT = [1, 2, 3, 3]
REPLY = [5, 6, 5, 5, 11, 0]
NUM_DRAWS = 20_000


def row(reply: list[int], stops: StopStrings | None = None, **options: Any) -> Sequence:
    return Sequence(
        rid="r",
        ids=[*PROMPT, *reply],
        options=SamplingOptions.model_validate(options),
        stop_ids=frozenset(),
        prompt_tokens=len(PROMPT),
        logprobs=[-1.0] * len(reply),
        **({} if stops is None else {"stop_strings": stops}),
    )


def expected(logits: np.ndarray, options: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Log-probs that are served, and the distribution that is drawn from."""
    logits = logits.astype(np.float64).copy()
    for token in range(SIZE):
        count = REPLY.count(token)  # of the reply alone: the prompt's tokens are not penalized
        logits[token] -= options.get("frequency_penalty", 0) * count
        if count:
            logits[token] -= options.get("presence_penalty", 0)
            factor = options.get("repetition_penalty", 1)
            logits[token] *= factor if logits[token] < 0 else 1 / factor
    logits /= options.get("temperature", 1)
    logprobs = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    probs = np.exp(logprobs)
    order = sorted(range(SIZE), key=lambda token: -probs[token])
    kept = np.zeros(SIZE)
    before = 0.0
    top_k = options.get("top_k", -1)
    for place, token in enumerate(order):
        in_k = top_k == -1 or place < top_k
        in_p = before < options.get("top_p", 1)
        in_min = probs[token] >= options.get("min_p", 0) * probs[order[0]]
        before += probs[token]
        if in_k and in_p and in_min:
            kept[token] = probs[token]
    return logprobs, kept / kept.sum()


OPTIONS: list[dict[str, Any]] = [
    {"top_p": 0.7},
    {"top_k": 3},
    {"top_k": 4, "temperature": 0.7},
    {"min_p": 0.3},
    {"top_p": 0.9, "top_k": 5, "min_p": 0.1, "temperature": 1.3},
    {"repetition_penalty": 1.8},
    {"repetition_penalty": 0.6},
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.7},
    {"frequency_penalty": -0.5, "presence_penalty": -1.0},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.4, "top_p": 0.8},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_distribution_is_the_one_that_is_defined(options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    logits = (torch.randn(SIZE) * 1.5).numpy()
    logprobs, probs = expected(logits, options)
    rows = [row(REPLY, **options)] * NUM_DRAWS
    tokens, served = sample(torch.from_numpy(logits).repeat(NUM_DRAWS, 1), rows)
    frequencies = np.bincount(tokens, minlength=SIZE) / NUM_DRAWS
    # Four standard errors of a frequency.
    assert frequencies == pytest.approx(probs, abs=0.0142)
    assert not frequencies[probs == 0].any()
    for token, logprob in zip(tokens[:200], served[:200], strict=True):
        # After penalties and temperature, before the cut.
        assert logprob == pytest.approx(logprobs[token], abs=1e-5)


def test_penalties_change_greedy_replies_too() -> None:
    logits = torch.zeros(SIZE)
    logits[5], logits[7] = 2.0, 1.5
    tokens, served = sample(logits[None].clone(), [row(REPLY, temperature=0, presence_penalty=1.0)])
    assert tokens == [7]
    logprobs, _ = expected(logits.numpy(), {"presence_penalty": 1.0})
    assert served == pytest.approx([logprobs[7]], abs=1e-5)


def test_a_row_without_penalties_has_the_same_bits_beside_one_that_has_some() -> None:
    torch.manual_seed(2)
    logits = torch.randn(2, SIZE)
    plain = {"temperature": 0.8, "sampling_seed": 3}
    alone = sample(logits[:1].clone(), [row(REPLY, **plain)])
    beside = sample(
        logits.clone(), [row(REPLY, **plain), row(REPLY, frequency_penalty=1.0, sampling_seed=4)]
    )
    assert (alone[0][0], alone[1][0]) == (beside[0][0], beside[1][0])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"repetition_penalty": 0}, SchemaViolation),
        ({"repetition_penalty": 2.1}, SchemaViolation),
        ({"presence_penalty": -2.1}, SchemaViolation),
        ({"frequency_penalty": 3}, SchemaViolation),
        ({"stop": [1]}, SchemaViolation),
        ({"stop_regex": "a+"}, InvalidRequest),
    ],
    ids=str,
)
def test_what_sglang_refuses_is_refused(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(options))):
        parse_options(options)


PIECES = ["", "<e", "nd>", "<", "end", ">", "x", "\u00e9", "en", "d"]


def written(ids: list[int]) -> str:
    return "".join(PIECES[token] for token in ids)


def played(reply: list[int], *stops: str, **options: Any) -> Sequence:
    """Tokens are appended until one of them ends the reply."""
    sequence = row([], StopStrings(stops, written), max_new_tokens=50, **options)
    sequence.logprobs = []
    for token in reply:
        sequence.append(token, -0.5, "1")
        if sequence.finish_reason is not None:
            break
    return sequence


@pytest.mark.parametrize(
    ("reply", "length"),
    [
        ([6, 1, 2, 6], 3),
        ([6, 3, 4, 5, 6], 4),  # spelled by more tokens than the tokenizer would take
        ([3, 8, 0, 9, 5, 6], 5),
        ([1, 6, 2, 6, 1, 2], 6),
        ([6, 7, 1, 2], 4),
    ],
)
def test_the_tokens_up_to_the_one_that_completes_the_text_stay(
    reply: list[int], length: int
) -> None:
    ended = played(reply, "never", "<end>", ignore_eos=True)
    assert ended.output_ids == reply[:length] and len(ended.logprobs) == length
    assert ended.finish_reason == {"type": "stop", "matched": "<end>"}


def test_text_of_the_prompt_ends_nothing() -> None:
    sequence = Sequence(
        rid="r",
        ids=[1],
        options=SamplingOptions(max_new_tokens=5),
        stop_ids=frozenset(),
        prompt_tokens=1,
        stop_strings=StopStrings(("<end>",), written),
    )
    sequence.append(2, -0.5, "1")
    assert sequence.finish_reason is None


def test_the_text_is_told_without_what_ended_it() -> None:
    ended = played([6, 7, 1, 2], "<end>")
    for start, told in enumerate(["x\u00e9", "\u00e9", "", ""]):
        assert ended.text(written, start) == told
    whole = played([6, 1, 2], "<end>", no_stop_trim=True)
    assert whole.text(written, 0) == "x<end>"


def test_a_text_that_never_comes_ends_nothing() -> None:
    reply = list(itertools.islice(itertools.cycle([3, 4, 6]), 30))
    assert played(reply, "<end>").finish_reason is None
