"""Spans of a trace: ids that follow from what they name, and texts of bounded length."""

from datetime import UTC, datetime, timedelta

import pytest

from mainspring.trajectories.spans import TEXT_CHARS, SpanKind, Trace, TraceSpan, bounded

START = datetime(2026, 11, 28, tzinfo=UTC)


def span(name: str, *children: TraceSpan, seconds: float = 1.0) -> TraceSpan:
    return TraceSpan(
        name, SpanKind.TURN, START, START + timedelta(seconds=seconds), children=children
    )


def trace(key: str = "uid\nfirst/g000000/000\n0") -> Trace:
    turns = [span(f"turn {n}", span("reply"), span("command 1")) for n in (1, 2)]
    return Trace(key, span("rollout", *turns), {})


def test_equal_rollouts_have_equal_ids_and_each_span_its_own() -> None:
    first, again = list(trace().spans()), list(trace().spans())
    assert trace().id == trace().id and [each.id for each in first] == [each.id for each in again]
    assert len({each.id for each in first}) == len(first) == 7
    other = trace("uid\nfirst/g000000/000\n1")
    assert other.id != trace().id
    assert not {each.id for each in other.spans()} & {each.id for each in first}
    assert trace().id < 2**128 and all(each.id < 2**64 for each in first)


def test_each_span_comes_after_its_parent() -> None:
    seen: set[int] = set()
    for placed in trace().spans():
        assert placed.parent is None if not seen else placed.parent in seen
        seen.add(placed.id)


def test_a_span_does_not_end_before_it_begins() -> None:
    with pytest.raises(AssertionError, match="turn 1 ends before it begins"):
        span("turn 1", seconds=-1.0)


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    text = bounded("begin" + "x" * 10 * TEXT_CHARS + "\x1b[31mend")
    assert len(text) <= TEXT_CHARS and text.startswith("begin") and text.endswith("xend")
