"""What this process knows of the rollouts it plays, so that a turn reads only what is new.

Invariants: the store is the truth, and every `read` asks it for the newest call that is known here
and all that came after; when it has another call there, everything is read again. What stands is
never changed, so what is known of earlier calls stays right; all commands of a call have run before
the next call is stored. A trajectory that is read belongs to its caller. Bounded by memory: the one
used longest ago leaves first, and is read again when it is needed. Imported by the activities.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from infra.db.database import Database
from infra.db.rollouts import turns
from mainspring.ids import RolloutId
from mainspring.trajectories.turns import Call, Execution

MAX_BYTES = 256 << 20
"""Of one process: some hundreds of long rollouts, each a megabyte of tokens as Python has them."""
TOKEN_BYTES = 36
"""A number and its place in a tuple."""
ROW_BYTES = 500
"""A call or an execution without tokens, text and output."""


@dataclass(slots=True)
class Trajectory:
    """The calls of one epoch of a rollout and what their commands did, in order."""

    calls: list[Call] = field(default_factory=list)
    executions: list[Execution] = field(default_factory=list)
    num_bytes: int = 0
    """About what it takes in memory."""

    def add_call(self, call: Call) -> None:
        self.calls.append(call)
        tokens = len(call.prompt_ids) + 2 * len(call.completion_ids)
        self.num_bytes += ROW_BYTES + TOKEN_BYTES * tokens + len(call.text)

    def add_execution(self, execution: Execution) -> None:
        self.executions.append(execution)
        self.num_bytes += ROW_BYTES + len(execution.output) + len(execution.command)

    def of(self, call: int) -> list[Execution]:
        """What the commands of one call did."""
        return [ran for ran in self.executions if ran.call == call]


class Trajectories:
    def __init__(self, db: Database, max_bytes: int = MAX_BYTES) -> None:
        self._db = db
        self._max_bytes = max_bytes
        self._known: OrderedDict[tuple[RolloutId, int], Trajectory] = OrderedDict()
        self._num_bytes = 0

    async def read(self, rollout: RolloutId, epoch: int) -> Trajectory:
        """All that is stored of the epoch."""
        known = self._known.get((rollout, epoch))
        if known is not None and known.calls:
            newest = known.calls[-1]
            calls, executions = await turns.history(self._db, rollout, epoch, newest.number)
            if calls and calls[0] == newest:
                whole = _before(known, newest.number)
                return self._kept(rollout, epoch, _added(whole, calls, executions))
        calls, executions = await turns.history(self._db, rollout, epoch)
        return self._kept(rollout, epoch, _added(Trajectory(), calls, executions))

    def keep(self, rollout: RolloutId, epoch: int, known: Trajectory) -> None:
        """What the caller has read, with what it stored since then."""
        self._kept(rollout, epoch, known)

    def forget(self, rollout: RolloutId, epoch: int) -> None:
        """An epoch whose last turn is played: should it be read again, the store has it."""
        known = self._known.pop((rollout, epoch), None)
        if known is not None:
            self._num_bytes -= known.num_bytes

    def _kept(self, rollout: RolloutId, epoch: int, known: Trajectory) -> Trajectory:
        before = self._known.pop((rollout, epoch), None)
        if before is not None:
            self._num_bytes -= before.num_bytes
        # A copy: two attempts of an activity may add to what they read.
        own = Trajectory([*known.calls], [*known.executions], known.num_bytes)
        self._known[rollout, epoch] = own
        self._num_bytes += own.num_bytes
        while self._num_bytes > self._max_bytes:
            _, oldest = self._known.popitem(last=False)
            self._num_bytes -= oldest.num_bytes
        return known


def _before(known: Trajectory, number: int) -> Trajectory:
    """Without call `number`, the newest, and its executions."""
    newest = known.calls[-1]
    last = Trajectory()
    last.add_call(newest)
    executions = known.executions
    end = len(executions)
    while end and executions[end - 1].call == number:
        end -= 1
        last.add_execution(executions[end])
    return Trajectory(known.calls[:-1], executions[:end], known.num_bytes - last.num_bytes)


def _added(to: Trajectory, calls: list[Call], executions: list[Execution]) -> Trajectory:
    for call in calls:
        to.add_call(call)
    for execution in executions:
        to.add_execution(execution)
    return to
