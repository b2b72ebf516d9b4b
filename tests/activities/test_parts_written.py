"""Parts of replies are written together, each token once, and never stop the replies."""

import asyncio
from collections.abc import Iterable

import pytest

from activities.replies import partial_replies
from activities.replies.partial_replies import PartialReplies, ReplyUnderWay
from infra.db.database import Database
from infra.db.rollouts import partial_calls
from infra.db.rollouts.partial_calls import Kept
from mainspring.errors import DatabaseError
from mainspring.ids import RolloutId
from mainspring.trajectories.turns import ReplyPart, VersionSpan
from tests.waiting import until

NOWHERE = "postgresql://postgres@127.0.0.1:1/none"
Range = tuple[int, int]


class Written:
    """In place of the table; refuses as often as it is told to."""

    def __init__(self, num_refused: int = 0) -> None:
        self.batches: list[dict[str, Range]] = []
        self.samplings: list[int] = []
        self.free = asyncio.Event()
        self.free.set()
        self._num_refused = num_refused

    async def __call__(self, db: Database, kept: Iterable[Kept]) -> None:
        kept = list(kept)
        self.batches.append({each.rollout: (each.part.start, each.part.end) for each in kept})
        self.samplings += [each.sampling for each in kept]
        await self.free.wait()
        if self._num_refused:
            self._num_refused -= 1
            raise DatabaseError("Postgres at 127.0.0.1:1 does not answer")


def reply(name: str) -> ReplyUnderWay:
    return ReplyUnderWay((RolloutId(name), 0, 3))


def part(start: int, end: int) -> ReplyPart:
    span = VersionSpan(0, start, end)
    return ReplyPart(start, tuple(range(start, end)), (-0.5,) * (end - start), (span,), 0.1)


@pytest.fixture
def partials(monkeypatch: pytest.MonkeyPatch) -> PartialReplies:
    monkeypatch.setattr(partial_replies, "WAIT_S", 0.01)
    return PartialReplies(Database.open(NOWHERE))


async def test_what_comes_during_a_write_is_one_write(
    partials: PartialReplies, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Written()
    monkeypatch.setattr(partial_calls, "put", written)
    written.free.clear()
    a, b, c = (reply(name) for name in "abc")
    partials.keep(a, part(0, 4))
    await until(lambda: bool(written.batches))
    for start, end in ((4, 8), (8, 12)):
        for each in (a, b, c):
            if each is a or start > 4:
                partials.keep(each, part(start if each is a else 0, end))
    partials.forget(c)
    assert written.batches == [{"a": (0, 4)}], "two writes at once"
    written.free.set()
    await until(lambda: len(written.batches) == 2)
    assert written.batches[1] == {"a": (4, 12), "b": (0, 12)}


async def test_a_store_that_does_not_answer_costs_a_warning(
    partials: PartialReplies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it did not take comes with the next part: no token is missing between two rows."""
    written = Written(num_refused=1)
    monkeypatch.setattr(partial_calls, "put", written)
    a = reply("a")
    partials.keep(a, part(0, 4))
    await until(lambda: len(written.batches) == 1)
    partials.keep(a, part(4, 8))
    await until(lambda: len(written.batches) == 2)
    assert written.batches == [{"a": (0, 4)}, {"a": (0, 8)}]


async def test_an_attempt_that_fails_leaves_what_it_had(
    partials: PartialReplies, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Written(num_refused=1)
    monkeypatch.setattr(partial_calls, "put", written)
    a, nothing = reply("a"), reply("b")
    partials.keep(a, part(0, 4))
    await until(lambda: partials._writing is not None and partials._writing.done())
    assert a.waiting, "the store refused it"
    partials.release(a)
    partials.release(nothing)
    await until(lambda: not a.waiting)
    assert written.batches == [{"a": (0, 4)}, {"a": (0, 4)}]


async def test_an_attempt_that_ends_during_its_write_is_written_once(
    partials: PartialReplies, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Written()
    monkeypatch.setattr(partial_calls, "put", written)
    written.free.clear()
    a = reply("a")
    partials.keep(a, part(0, 4))
    await until(lambda: bool(written.batches))
    partials.release(a)
    written.free.set()
    assert partials._writing is not None
    await partials._writing
    assert written.batches == [{"a": (0, 4)}]


async def test_two_attempts_never_mix_their_tokens(
    partials: PartialReplies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that is over may still be sent pieces; one that begins anew is another one."""
    written = Written()
    monkeypatch.setattr(partial_calls, "put", written)
    old, new = reply("a"), reply("a")
    for one, piece in ((old, part(0, 4)), (new, part(0, 2)), (old, part(4, 8)), (new, part(2, 3))):
        partials.keep(one, piece)
        await until(lambda one=one: not one.waiting)
    assert [batch["a"] for batch in written.batches] == [(0, 4), (0, 2), (4, 8), (2, 3)]
    first, second, third, fourth = written.samplings
    assert first == third != second == fourth
    partials.keep(new, part(0, 9))
    await until(lambda: not new.waiting)
    assert written.samplings[4] not in (first, second)
