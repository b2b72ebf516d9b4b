"""Cache of the calls of the rollouts that this process plays, so that a reply reads only what is
new: an agent's calls with what their commands did, a program's with its requests.

Invariants: the store is the truth. What stands there is never changed, so what is known of earlier
calls stays right; every read asks for the newest that is known here, and when the store has another
one there, everything is read again. What is read belongs to its caller, but for its tokens: these
are arrays, which nothing writes to. Bounded by memory: the epoch used longest ago leaves first, and
is read again when it is needed. Imported by the activities of replies and by the gateway.
"""

from array import array
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from sys import getsizeof
from typing import Protocol

from sqlalchemy import ARRAY, Integer, and_, any_, bindparam, not_, select

from infra.db.database import Database
from infra.db.rollouts import turns
from infra.db.tables.models import CallRow
from infra.db.tables.program_rows import ModelRequestRow
from mainspring.agents.asking import NextRequest
from mainspring.agents.record import Record
from mainspring.ids import RolloutId
from mainspring.programs.matching import StoredCall
from mainspring.programs.record import RequestState
from mainspring.programs.request import Role
from mainspring.trajectories.turns import Call, Execution

MAX_BYTES = 256 << 20
"""Most in one process: a thousand rollouts of 40,000 tokens."""
CALL_BYTES = 350
"""A call without tokens and text."""
EXECUTION_BYTES = 180
"""An execution without command and output."""
MESSAGE_BYTES = 720
"""A message of a request without its text, and its digests."""
_ROW = ModelRequestRow
_NOT_FOUND = object()
_SETTLED = (
    select(_ROW.number, _ROW.history, *turns.CALL)
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


@dataclass(slots=True)
class PlayedCalls:
    """The calls of one epoch of an agent's rollout and what their commands did, in order."""

    calls: list[Call] = field(default_factory=list)
    executions: list[Execution] = field(default_factory=list)
    last_request: NextRequest | None = None
    """The request asked last, after some of these calls."""
    num_bytes: int = 0
    """About what it takes in memory."""

    @property
    def record(self) -> Record:
        return Record(self.calls, self.executions)

    def add_call(self, call: Call) -> None:
        self.calls.append(packed_call := packed(call))
        self.num_bytes += _num_bytes(packed_call)

    def add_execution(self, execution: Execution) -> None:
        self.executions.append(execution)
        self.num_bytes += EXECUTION_BYTES + _sizes(execution.output, execution.command)

    def add_asked(self, next_request: NextRequest) -> None:
        first = 0 if self.last_request is None else len(self.last_request.request.messages)
        new = next_request.request.messages[first:]
        # A reply's text is that of its call.
        texts = [message.text for message in new if message.role is not Role.ASSISTANT]
        self.num_bytes += MESSAGE_BYTES * len(new) + _sizes(*texts)
        self.last_request = next_request


@dataclass(slots=True)
class SettledRequests:
    """Requests of one epoch of a program's rollout that are settled: answered or refused, which
    they stay. They are settled in any order."""

    calls: dict[int, StoredCall | None] = field(default_factory=dict)
    """By number; None: refused."""
    first_open: int = 0
    """All requests of lower numbers are settled."""
    num_bytes: int = CALL_BYTES

    def add(self, number: int, stored: StoredCall | None) -> None:
        self.calls[number] = stored
        while self.first_open in self.calls:
            self.first_open += 1
        self.num_bytes += CALL_BYTES
        if stored is not None:
            self.num_bytes += _num_bytes(stored.call) + _sizes(stored.history)


@dataclass(slots=True)
class HistoryReads:
    """Reads of histories that have calls: the first read of a rollout is none."""

    num_known: int = 0
    """Those that found the history here, and asked the store for what came after it."""
    num_whole: int = 0
    """Those that read all of it from the store."""

    def count(self, *, is_known: bool) -> None:
        self.num_known += is_known
        self.num_whole += not is_known


class _Sized(Protocol):
    num_bytes: int


class CallCache:
    def __init__(self, db: Database, max_bytes: int = MAX_BYTES) -> None:
        self.reads = HistoryReads()
        self._db = db
        self._max_bytes = max_bytes
        self._cached: OrderedDict[tuple[RolloutId, int], tuple[_Sized, int]] = OrderedDict()
        """With the bytes that were counted for it."""
        self._num_bytes = 0

    async def played(self, rollout: RolloutId, epoch: int) -> PlayedCalls:
        """All that is stored of an agent's epoch."""
        cached, _ = self._cached.get((rollout, epoch), (None, 0))
        if isinstance(cached, PlayedCalls) and cached.calls:
            newest = cached.calls[-1]
            calls, executions = await turns.history(self._db, rollout, epoch, newest.number)
            if calls and packed(calls[0]) == newest:
                self.reads.count(is_known=True)
                calls[0] = newest  # the object that the request asked last may hold as well
                whole = _added(_before(cached, newest.number), calls, executions)
                self.keep(rollout, epoch, whole)
                return whole
        calls, executions = await turns.history(self._db, rollout, epoch)
        if calls:
            self.reads.count(is_known=False)
        whole = _added(PlayedCalls(), calls, executions)
        self.keep(rollout, epoch, whole)
        return whole

    def keep(self, rollout: RolloutId, epoch: int, played: PlayedCalls) -> None:
        """Keep what the caller has read, with what it stored since then."""
        # A copy: two attempts of an activity may add to what they read.
        own = PlayedCalls(
            [*played.calls], [*played.executions], played.last_request, played.num_bytes
        )
        self._keep(rollout, epoch, own)

    def forget(self, rollout: RolloutId, epoch: int) -> None:
        """An epoch whose last turn is played: should it be read again, the store has it."""
        _, counted = self._cached.pop((rollout, epoch), (None, 0))
        self._num_bytes -= counted

    async def settled(self, rollout: RolloutId, epoch: int) -> list[StoredCall]:
        """All stored replies of a program's epoch by number."""
        cached, _ = self._cached.get((rollout, epoch), (None, 0))
        if not isinstance(cached, SettledRequests):
            cached = SettledRequests()
        newest = max(cached.calls, default=None)
        answers = await self._settled(rollout, epoch, cached, newest)
        is_known = newest is not None and answers.pop(newest, _NOT_FOUND) == cached.calls[newest]
        if newest is not None and not is_known:
            cached = SettledRequests()
            answers = await self._settled(rollout, epoch, cached, None)
        if is_known or answers:
            self.reads.count(is_known=is_known)
        # Two attempts may read at once: what both found is added once.
        for number, stored in answers.items():
            if number not in cached.calls:
                cached.add(number, stored)
        self._keep(rollout, epoch, cached)
        calls = [cached.calls[number] for number in sorted(cached.calls)]
        return [call for call in calls if call is not None]

    async def _settled(
        self, rollout: RolloutId, epoch: int, cached: SettledRequests, newest: int | None
    ) -> dict[int, StoredCall | None]:
        first = cached.first_open if newest is None else min(cached.first_open, newest)
        parameters = {
            "rollout": rollout,
            "epoch": epoch,
            "first": first,
            "known": [number for number in cached.calls if number >= first and number != newest],
        }
        async with self._db.statement() as connection:
            rows = (await connection.execute(_SETTLED, parameters)).all()
        return {
            number: None if history is None else StoredCall(packed(Call(*call)), history)
            for number, history, *call in rows
        }

    def _keep(self, rollout: RolloutId, epoch: int, epoch_calls: _Sized) -> None:
        self.forget(rollout, epoch)
        self._cached[rollout, epoch] = epoch_calls, epoch_calls.num_bytes
        self._num_bytes += epoch_calls.num_bytes
        while self._num_bytes > self._max_bytes:
            _, (_, counted) = self._cached.popitem(last=False)
            self._num_bytes -= counted


def packed(call: Call) -> Call:
    """The same call as it is kept: 4 bytes for each token and log-probability, as the store has
    them. A number of Python and its place in a tuple take nine times as much."""
    if isinstance(call.prompt_ids, array):
        return call
    return replace(
        call,
        prompt_ids=array("i", call.prompt_ids),
        completion_ids=array("i", call.completion_ids),
        logprobs=array("f", call.logprobs),
    )


def _num_bytes(call: Call) -> int:
    num = CALL_BYTES + _sizes(call.prompt_ids, call.completion_ids, call.logprobs, call.text)
    if call.rewritten is not None:
        messages = call.rewritten.messages
        num += MESSAGE_BYTES * len(messages) + _sizes(*(message.text for message in messages))
    if call.parts is not None:
        texts = [
            part
            for tool_call in call.parts.tool_calls
            for part in (tool_call.name, tool_call.arguments)
        ]
        num += MESSAGE_BYTES + _sizes(call.parts.text, call.parts.reasoning, *texts)
    return num


def _sizes(*values: object) -> int:
    return sum(map(getsizeof, values))


def _before(played: PlayedCalls, number: int) -> PlayedCalls:
    """Without call `number`, the newest, and its executions."""
    newest = played.calls[-1]
    last = PlayedCalls()
    last.add_call(newest)
    executions = played.executions
    end = len(executions)
    while end and executions[end - 1].call == number:
        end -= 1
        last.add_execution(executions[end])
    return PlayedCalls(
        played.calls[:-1], executions[:end], played.last_request, played.num_bytes - last.num_bytes
    )


def _added(to: PlayedCalls, calls: list[Call], executions: list[Execution]) -> PlayedCalls:
    for call in calls:
        to.add_call(call)
    for execution in executions:
        to.add_execution(execution)
    return to
