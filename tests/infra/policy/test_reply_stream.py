"""Both kinds of streams give the same pieces and the same reply; what is read is linear."""

import json
import random
from typing import Any

import pytest

from infra.policy.engines.reply_stream import INTERVAL_TOKENS, SHARE, ReplyStream

RANDOM = random.Random(5)


def spans_to(end: int) -> list[dict[str, Any]]:
    """Under version 0 to token 300, then under 1."""
    cuts = [("0", 0, min(end, 300)), ("1", 300, end)]
    return [{"version": v, "start": a, "end": b} for v, a, b in cuts if b > a]


def events(length: int, *, incremental: bool) -> list[str]:
    entries = [[RANDOM.gauss(-2, 1), token, None] for token in range(length)]
    found = []
    ends = [*range(INTERVAL_TOKENS, length, INTERVAL_TOKENS), length]
    for before, end in zip([0, *ends], ends, strict=False):
        start = before if incremental else 0
        meta = {
            "output_token_logprobs": entries[start:end],
            "weight_versions": spans_to(end),
            "weight_version": "1",
            "finish_reason": {"type": "length"} if end == length else None,
        }
        answer = {"output_ids": [*range(start, end)], "meta_info": meta}
        found.append(json.dumps(answer))
    return found


@pytest.mark.parametrize("incremental", [True, False])
@pytest.mark.parametrize("length", [1, 31, 32, 33, 320, 5000])
def test_pieces_follow_one_another_and_the_whole_is_the_last_event(
    length: int, incremental: bool
) -> None:
    told = events(length, incremental=incremental)
    stream, end = ReplyStream(incremental), 0
    for number, data in enumerate(told, start=1):
        piece = stream.take(data)
        if piece is not None:
            assert piece.start == end
            ids, meta = piece.answer["output_ids"], piece.answer["meta_info"]
            assert ids == [*range(end, end + len(ids))]
            assert [entry[1] for entry in meta["output_token_logprobs"]] == ids
            assert sum(span["end"] - span["start"] for span in meta["weight_versions"]) == len(ids)
            assert meta["weight_versions"][0]["start"] == 0
            end += len(ids)
        sent = min(number * INTERVAL_TOKENS, length)
        if sent < length:
            # Another event may be under way when the process dies.
            assert sent - end <= max(0, sent / SHARE - INTERVAL_TOKENS)
    stream.close()
    assert stream.has_ended
    whole = stream.whole()
    assert whole is not None and whole["output_ids"] == [*range(length)]
    assert [entry[1] for entry in whole["meta_info"]["output_token_logprobs"]] == [*range(length)]
    assert whole["meta_info"]["weight_versions"] == spans_to(length)


def test_events_that_repeat_the_reply_are_read_in_proportion_to_its_length() -> None:
    def read(length: int) -> int:
        stream, num_chars = ReplyStream(incremental=False), 0
        for data in events(length, incremental=False):
            before = stream._num_chars
            stream.take(data)
            num_chars += len(data) if stream._num_chars != before else 0
        return num_chars

    assert read(8192) < 3 * read(4096) < 9 * read(2048)


def test_a_stream_that_is_cut_has_what_it_sent_whether_it_was_read_or_not() -> None:
    told = events(4096, incremental=False)
    stream = ReplyStream(incremental=False)
    for data in told[:100]:
        stream.take(data)
    stream.close()
    whole = stream.whole()
    assert whole is not None and len(whole["output_ids"]) == 3200 and not stream.has_ended


@pytest.mark.parametrize("incremental", [True, False])
def test_an_error_is_read_at_once_and_another_shape_is_refused(incremental: bool) -> None:
    told = events(4096, incremental=incremental)
    stream = ReplyStream(incremental)
    for data in told[:100]:
        stream.take(data)
    assert stream.take('{"error": {"message": "no memory"}}') is None
    assert stream.error == {"message": "no memory"}
    for data in ("[1]", "{", '{"output_ids": [1]}', '{"output_ids": 1, "meta_info": {}}'):
        with pytest.raises(ValueError):
            ReplyStream(incremental).take(data)
    assert ReplyStream(incremental).whole() is None
