"""Parts that are kept are of one sampling, whatever happened to the requests before."""

from typing import Any

import pytest

from infra.policy.engines.partial import KeptParts, Partial
from infra.policy.engines.reply_stream import Piece
from infra.policy.protocol import ANY
from mainspring.trajectories.turns import ReplyPart, begun_by


def answer(*ids: int, finish: str | None = None) -> dict[str, Any]:
    meta = {
        "output_token_logprobs": [[-float(token), token, None] for token in ids],
        "finish_reason": finish and {"type": finish},
        "weight_versions": [{"version": "0", "start": 0, "end": len(ids)}],
        "weight_version": "0",
    }
    return {"output_ids": list(ids), "meta_info": meta}


@pytest.fixture
def parts() -> list[ReplyPart]:
    return []


@pytest.fixture
def partial() -> Partial:
    return Partial(False)


@pytest.fixture
def kept(partial: Partial, parts: list[ReplyPart]) -> KeptParts:
    return KeptParts(partial, ANY, parts.append)


def test_what_an_abort_added_is_kept_with_the_next_piece(partial, kept, parts) -> None:
    kept.take("a", Piece(0, answer(1, 2)))
    partial.add("a", answer(1, 2, 3, finish="abort"), ANY, 0.0)
    kept.take("a", Piece(0, answer(4)))
    assert [(part.start, part.completion_ids) for part in parts] == [(0, (1, 2)), (2, (3, 4))]
    assert begun_by(parts).completion_ids == (1, 2, 3, 4)


def test_tokens_of_a_lost_request_are_never_followed_by_those_of_another(
    partial, kept, parts
) -> None:
    """The other one gave more tokens, and none of them in a piece."""
    kept.take("a", Piece(0, answer(1, 2)))
    kept.lose()
    partial.add("b", answer(7, 8, 9, finish="abort"), ANY, 0.0)
    kept.take("b", Piece(0, answer(10)))
    assert [(part.start, part.completion_ids) for part in parts] == [
        (0, (1, 2)),
        (0, (7, 8, 9, 10)),
    ]


def test_a_piece_after_one_that_was_not_kept_is_left_out(kept, parts) -> None:
    unknown = answer(1, 2)
    unknown["meta_info"]["weight_versions"][0]["version"] = "another campaign's"
    kept.take("a", Piece(0, unknown))
    kept.take("a", Piece(2, answer(3)))
    assert parts == []
