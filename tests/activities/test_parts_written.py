"""Parts of replies are written together, the newest of each, and never stop the replies."""

import asyncio
from collections.abc import Iterable

import pytest

from activities.replies import partial_replies
from activities.replies.partial_replies import PartialReplies
from infra.db.database import Database
from infra.db.rollouts import partial_calls
from infra.db.rollouts.partial_calls import Kept
from mainspring.errors import DatabaseError
from mainspring.ids import RolloutId
from mainspring.trajectories.turns import PartialCall, VersionSpan
from tests.waiting import until

NOWHERE = "postgresql://postgres@127.0.0.1:1/none"


class Written:
    """In place of the table; refuses as often as it is told to."""

    def __init__(self, num_refused: int = 0) -> None:
        self.batches: list[dict[str, int]] = []
        self.free = asyncio.Event()
        self.free.set()
        self._num_refused = num_refused

    async def __call__(self, db: Database, kept: Iterable[Kept]) -> None:
        self.batches.append({each.rollout: len(each.partial.completion_ids) for each in kept})
        await self.free.wait()
        if self._num_refused:
            self._num_refused -= 1
            raise DatabaseError("Postgres at 127.0.0.1:1 does not answer")


def part(name: str, length: int) -> Kept:
    tokens = PartialCall(tuple(range(length)), (-0.5,) * length, (VersionSpan(0, 0, length),), 0.1)
    return Kept(RolloutId(name), 0, 3, tokens)


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
    partials.keep(part("a", 4))
    await until(lambda: bool(written.batches))
    for length in (8, 12):
        for name in ("a", "b", "c"):
            partials.keep(part(name, length))
    partials.forget(RolloutId("c"), 0, 3)
    assert written.batches == [{"a": 4}], "two writes at once"
    written.free.set()
    await until(lambda: len(written.batches) == 2)
    assert written.batches[1] == {"a": 12, "b": 12}


async def test_a_store_that_does_not_answer_costs_a_warning(
    partials: PartialReplies, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Written(num_refused=1)
    monkeypatch.setattr(partial_calls, "put", written)
    partials.keep(part("a", 4))
    await until(lambda: len(written.batches) == 1)
    partials.keep(part("a", 8))
    await until(lambda: len(written.batches) == 2)
    assert written.batches == [{"a": 4}, {"a": 8}]
