"""Bodies that an edge holds until their answers begin, and how many bytes of them.

Invariant: all of them together are at most MAX_HELD_BYTES; the client of a request that would be
more is told to ask again. Imported by the edge's application.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.dialects.protocol import Problem, ProblemKind

MAX_HELD_BYTES = 512 * 1024 * 1024
"""16 of the largest bodies, or thousands of usual ones."""
_FULL = Problem(ProblemKind.UNAVAILABLE, "too many requests wait here for the moment: ask again")


class Unanswered(Exception):
    """No gateway answers this request; `problem` is what its client is told."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Held:
    def __init__(self) -> None:
        self.num_bytes = 0

    @contextmanager
    def body(self) -> Iterator["Holding"]:
        holding = Holding(self)
        try:
            yield holding
        finally:
            self.num_bytes -= holding.num_bytes

    def has_room(self, num_bytes: int) -> bool:
        return self.num_bytes + num_bytes <= MAX_HELD_BYTES


class Holding:
    def __init__(self, held: Held) -> None:
        self._held = held
        self.num_bytes = 0

    def add(self, num_bytes: int) -> None:
        """Raises Unanswered when there is no room for them."""
        if not self._held.has_room(num_bytes):
            raise Unanswered(_FULL)
        self._held.num_bytes += num_bytes
        self.num_bytes += num_bytes
