"""One thing that a campaign waits for, and whether somebody has to do something about it.

Invariant: "blocked" is only what does not move by itself: an alarm that is often wrong is not read.
Made by `waits` and by what looks at processes; shown by every screen.
"""

from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum

from mainspring.words.figures import duration


class WaitKind(StrEnum):
    """The word that stands before a wait on a screen."""

    BLOCKED = "blocked"
    """It does not move by itself: somebody has to do what the remedy tells."""
    QUEUED = "queued"
    """It waits for a place, and moves as soon as one is free."""
    STARTING = "starting"
    """A worker that it needs is being started by a command on this machine."""
    SLOW = "slow"
    """It runs and takes long, or was given up and runs again: nothing has to be done yet."""
    ENDING = "ending"
    """It is being cancelled."""


@dataclass(frozen=True, slots=True)
class Wait:
    """One thing that a campaign waits for."""

    what: str
    remedy: str = ""
    since: datetime | None = None
    queue: str | None = None
    pollers: tuple[str, ...] = ()
    """Who polls that queue."""
    failure: str = ""
    """The newest one."""
    of: tuple[str, ...] = ()
    """Ids of the workflows that wait, of those that were looked at."""
    engines: tuple[str, ...] = ()
    """Addresses at which no engine answers, where it waits for one."""
    attempt: int = 1
    """The highest of those that are retried."""
    rank: int = 0
    """Those that block everything come first."""
    before: str = ""
    """Failure of the attempt before this one, where this one runs."""
    kind: WaitKind = WaitKind.BLOCKED

    def line(self, at: datetime) -> str:
        age = (at - self.since).total_seconds() if self.since else 0.0
        tries = [f"attempt {self.attempt}"] if self.attempt > 1 else []
        facts = ", ".join([*tries, *([f"for {duration(age)}"] if age >= 1 else [])])
        sentence = f"{self.what} ({facts})" if facts else self.what
        with_remedy = f"{sentence}; {self.remedy}" if self.remedy else sentence
        return f"{with_remedy}; the attempt before: {self.before}" if self.before else with_remedy

    def as_dict(self) -> dict[str, object]:
        fields = asdict(self)
        del fields["rank"], fields["engines"]
        fields["since"] = self.since.isoformat(timespec="seconds") if self.since else None
        return fields
