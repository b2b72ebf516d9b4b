"""What this process knows of the calls that programs made, so that a reply reads only what is new.

Invariants: a request that is settled (its reply stored, or refused) stays so, and only such are
kept; requests may be settled in any order, so every `read` asks for all that are not known here,
and for the newest that is; when the store has another one there, everything is read again. Bounded
by memory: the epoch used longest ago leaves first. Imported by the activities of replies.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from sqlalchemy import ARRAY, Integer, and_, any_, bindparam, not_, select

from infra.db.database import Database
from infra.db.rollouts.trajectories import ROW_BYTES, TOKEN_BYTES
from infra.db.rollouts.turns import CALL
from infra.db.tables.models import CallRow
from infra.db.tables.program_rows import ModelRequestRow
from mainspring.ids import RolloutId
from mainspring.programs.record import RequestState
from mainspring.trajectories.turns import Call

MAX_BYTES = 256 << 20
"""Of one process: some hundreds of long rollouts."""
_ROW = ModelRequestRow
_NOT_FOUND = object()
_SETTLED = (
    select(_ROW.number, _ROW.history, *CALL)
    .outerjoin(
        CallRow,
        and_(
            CallRow.rollout_id == _ROW.rollout_id,
            CallRow.epoch == _ROW.epoch,
            CallRow.number == _ROW.number,
        ),
    )
    .where(
        _ROW.rollout_id == bindparam("rollout"),
        _ROW.epoch == bindparam("epoch"),
        _ROW.number >= bindparam("first"),
        not_(_ROW.number == any_(bindparam("known", type_=ARRAY(Integer)))),
        _ROW.state != RequestState.ASKED,
    )
    .order_by(_ROW.number)
)


@dataclass(frozen=True, slots=True)
class SettledCall:
    """A stored reply and the digest of its history."""

    call: Call
    history: str


@dataclass(slots=True)
class _Epoch:
    settled: dict[int, SettledCall | None] = field(default_factory=dict)
    """By number; None: refused."""
    first_open: int = 0
    """All requests of lower numbers are settled."""
    num_bytes: int = ROW_BYTES
    """About what it takes in memory."""

    def add(self, number: int, settled: SettledCall | None) -> None:
        self.settled[number] = settled
        while self.first_open in self.settled:
            self.first_open += 1
        self.num_bytes += ROW_BYTES
        if settled is not None:
            call = settled.call
            num_tokens = len(call.prompt_ids) + 2 * len(call.completion_ids)
            self.num_bytes += TOKEN_BYTES * num_tokens + len(call.text)


class ProgramCalls:
    def __init__(self, db: Database, max_bytes: int = MAX_BYTES) -> None:
        self._db = db
        self._max_bytes = max_bytes
        self._known: OrderedDict[tuple[RolloutId, int], tuple[_Epoch, int]] = OrderedDict()
        """With the bytes that were counted for it."""
        self._num_bytes = 0

    async def read(self, rollout: RolloutId, epoch: int) -> list[SettledCall]:
        """All stored replies of the epoch by number."""
        known, _ = self._known.get((rollout, epoch), (_Epoch(), 0))
        newest = max(known.settled, default=None)
        found = await self._settled(rollout, epoch, known, newest)
        if newest is not None and found.pop(newest, _NOT_FOUND) != known.settled[newest]:
            known = _Epoch()
            found = await self._settled(rollout, epoch, known, None)
        # Two attempts may read at once: what both found is added once.
        for number, settled in found.items():
            if number not in known.settled:
                known.add(number, settled)
        self._keep(rollout, epoch, known)
        calls = [known.settled[number] for number in sorted(known.settled)]
        return [each for each in calls if each is not None]

    async def _settled(
        self, rollout: RolloutId, epoch: int, known: _Epoch, newest: int | None
    ) -> dict[int, SettledCall | None]:
        first = known.first_open if newest is None else min(known.first_open, newest)
        which = {
            "rollout": rollout,
            "epoch": epoch,
            "first": first,
            "known": [each for each in known.settled if each >= first and each != newest],
        }
        async with self._db.statement() as connection:
            rows = (await connection.execute(_SETTLED, which)).all()
        return {
            number: None if history is None else SettledCall(Call(*call), history)
            for number, history, *call in rows
        }

    def _keep(self, rollout: RolloutId, epoch: int, known: _Epoch) -> None:
        _, counted = self._known.pop((rollout, epoch), (None, 0))
        self._known[rollout, epoch] = known, known.num_bytes
        self._num_bytes += known.num_bytes - counted
        while self._num_bytes > self._max_bytes and len(self._known) > 1:
            _, (_, counted) = self._known.popitem(last=False)
            self._num_bytes -= counted
