"""Events in words, one line for each: for lists, panels and reports.

Pure. Invariant: what happens to each rollout by itself is told in one line with its number where it
comes within TOGETHER, so that a dead node is not sixty lines; an id in a line is whole.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from mainspring.status.event import LASTING, EventKind

TOGETHER = timedelta(seconds=60)
_MANY = {
    EventKind.SANDBOX_REBUILT: "sandboxes rebuilt",
    EventKind.EPOCH_BEGUN: "rollouts begun again",
}
"""Words for many of a kind that happens to each rollout by itself."""
_QUIET = {*LASTING, EventKind.ENGINE_JOINED, EventKind.ENGINE_LEFT}
"""Kinds that are no loss or recovery."""


class Told(Protocol):
    """An event as it is stored."""

    @property
    def at(self) -> datetime: ...

    @property
    def last_at(self) -> datetime: ...

    @property
    def count(self) -> int: ...

    @property
    def kind(self) -> str: ...

    @property
    def text(self) -> str: ...

    @property
    def by(self) -> str: ...


@dataclass(frozen=True, slots=True)
class EventLine:
    at: datetime
    last_at: datetime
    kind: str
    text: str

    def told(self) -> str:
        """With its time of the day."""
        return f"{self.at:%H:%M:%S} UTC  {self.text}"


def lines(events: Iterable[Told]) -> list[EventLine]:
    """`events`: the oldest first."""
    runs: list[list[Told]] = []
    for event in events:
        if runs and _is_more(runs[-1], event):
            runs[-1].append(event)
        else:
            runs.append([event])
    return [_line(run) for run in runs]


def _is_more(run: Sequence[Told], event: Told) -> bool:
    last = run[-1]
    return (
        event.kind in _MANY and event.kind == last.kind and event.last_at - last.last_at < TOGETHER
    )


def _line(run: Sequence[Told]) -> EventLine:
    first, last = run[0], run[-1]
    number = sum(event.count for event in run)
    # A person has a name at a host; who noticed something is of no interest here.
    text = f"{last.by}: {last.text}" if "@" in last.by else last.text
    if len(run) > 1:
        text = f"{number} {_MANY[EventKind(last.kind)]}, the last: {last.text}"
    elif number > 1:
        text += f" ({number} times until {last.last_at:%H:%M:%S})"
    return EventLine(first.at, last.last_at, last.kind, text)


def at_steps(
    events: Iterable[Told], ends: Sequence[tuple[int, datetime]]
) -> dict[float, list[str]]:
    """Losses and recoveries on an axis of steps, which has no times: each stands before the first
    step that ended after it. `ends`: number and end of each step, in order."""
    found: dict[float, list[str]] = {}
    times = [end for _, end in ends]
    for event in events if ends else ():
        if event.kind not in _QUIET:
            after = bisect_left(times, event.at)
            place = ends[after][0] - 0.5 if after < len(ends) else ends[-1][0] + 0.5
            found.setdefault(place, []).append(event.text)
    return dict(sorted(found.items()))
