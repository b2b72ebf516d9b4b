"""The rollout so far, as its agent sees it.

Invariant: pure; it holds what is stored and no more, so it is the same for every attempt, on
whatever machine. Made from the store by the activities of replies, and by exports.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from mainspring.programs.request import ModelRequest
from mainspring.trajectories.turns import Call, Execution


@dataclass(frozen=True, slots=True)
class Record:
    calls: Sequence[Call]
    """Calls of the rollout's epoch, in order; one whose parent is None began a branch."""
    executions: Sequence[Execution]
    """Executions of their commands, in order."""
    last_request: ModelRequest | None = None
    """Request that the last call replied to: the agent's for the record without it."""

    def ran(self, call: int) -> Sequence[Execution]:
        """Executions of the commands of call number `call`, in order."""
        first = bisect_left(self.executions, call, key=lambda execution: execution.call)
        return self.executions[
            first : bisect_right(self.executions, call, first, key=lambda execution: execution.call)
        ]

    def without_summaries(self) -> "Record":
        """As the agent sees it."""
        if not any(call.is_summary for call in self.calls):
            return self
        calls = [call for call in self.calls if not call.is_summary]
        return Record(calls, self.executions, self.last_request)

    def before(self, num_calls: int, last_request: ModelRequest | None = None) -> "Record":
        """As it was after the first `num_calls` calls."""
        if num_calls == len(self.calls):
            return Record(self.calls, self.executions, last_request)
        end = bisect_left(
            self.executions, self.calls[num_calls].number, key=lambda execution: execution.call
        )
        return Record(self.calls[:num_calls], self.executions[:end], last_request)
