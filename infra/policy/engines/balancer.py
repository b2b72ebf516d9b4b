"""Which engine a request goes to: the one that has its rollout's prefix, else a little-loaded one.

Invariants: processes that ask the same engines choose alike without talking to each other: from
the engine that the rollout's last reply is stored with, from a hash of the rollout, and from the
loads that engines were last seen with. An engine that drains gets no request; one that does not
answer comes last. Used by the clients of engines and of endpoints.
"""

import hashlib
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

MAX_STICKY_KEYS = 65_536
"""Least recently used keys beyond this are forgotten; they cost one prefill."""
COOL_DOWN_S = 5.0
"""Requests avoid an engine that did not answer for so long."""
FAR_MORE = 2.0
SPARE_REQUESTS = 8
"""A prefix is not worth waiting for at an engine that has FAR_MORE times as many requests as the
least loaded one, and SPARE_REQUESTS above."""


@dataclass(frozen=True, slots=True)
class EngineMember:
    """An engine that requests may go to."""

    name: str
    """Stays when its address changes."""
    url: str
    load: int = 0
    """Requests, of all processes, that it had when it was last seen."""
    is_draining: bool = False
    is_lost: bool = False

    @classmethod
    def at(cls, url: str) -> "EngineMember":
        """One that is known by its address alone."""
        return cls(url, url)


class Balancer:
    def __init__(self, members: Sequence[EngineMember]) -> None:
        self._members: dict[str, EngineMember] = {}
        self._in_flight: Counter[str] = Counter()
        """Requests of this process, by address."""
        self._then: dict[str, int] = {}
        """The same, when the loads were seen."""
        self._sticky: OrderedDict[str, str] = OrderedDict()
        """Name of the engine that a key went to last from here."""
        self._avoid_until: dict[str, float] = {}
        self.use(members)

    @property
    def members(self) -> list[EngineMember]:
        return list(self._members.values())

    def use(self, members: Sequence[EngineMember]) -> None:
        """From now on these; requests that are under way end where they are."""
        self._members = {member.url: member for member in members}
        self._then = {url: self._in_flight[url] for url in self._members}
        self._in_flight = +self._in_flight

    @property
    def answering(self) -> list[EngineMember]:
        """Those that requests may go to now."""
        return [
            member
            for member in self._members.values()
            if not member.is_draining and not self._is_away(member)
        ]

    def name_of(self, url: str) -> str:
        return self._members[url].name if url in self._members else url

    def candidates(self, sticky: str, home: str = "") -> list[str]:
        """Addresses of all engines that take requests, the best for this key first. `home`: name of
        the engine that has the key's prefix; empty: as far as this process knows."""
        members = [member for member in self._members.values() if not member.is_draining]
        answering = sorted(self.answering, key=lambda member: _rank(member, sticky))
        if len(answering) > 1:
            first = self._home(answering, home or self._sticky.get(sticky, ""))
            # The less loaded of two: loads that are seconds old send no crowd to one engine.
            first = first or min(answering[:2], key=self.load)
        else:
            first = None
        members.sort(key=lambda each: (each != first, self._is_away(each), self.load(each)))
        return [member.url for member in members]

    def load(self, member: EngineMember) -> int:
        """Requests that it has now, as far as this process knows."""
        since = self._in_flight[member.url] - self._then.get(member.url, 0)
        return max(member.load + since, self._in_flight[member.url])

    @contextmanager
    def sending(self, engine: str, sticky: str) -> Iterator[None]:
        """Count a request to `engine` while it lasts, and remember the key went there."""
        self._sticky[sticky] = self.name_of(engine)
        self._sticky.move_to_end(sticky)
        if len(self._sticky) > MAX_STICKY_KEYS:
            self._sticky.popitem(last=False)
        self._in_flight[engine] += 1
        try:
            yield
        finally:
            self._in_flight[engine] -= 1

    def answered(self, engine: str) -> None:
        self._avoid_until.pop(engine, None)

    def did_not_answer(self, engine: str) -> None:
        self._avoid_until[engine] = time.monotonic() + COOL_DOWN_S

    def _home(self, answering: Sequence[EngineMember], name: str) -> EngineMember | None:
        """The engine of that name, unless it has far more requests than another one."""
        least = min(map(self.load, answering))
        for member in answering:
            if member.name == name:
                return member if self.load(member) <= FAR_MORE * least + SPARE_REQUESTS else None
        return None

    def _is_away(self, member: EngineMember) -> bool:
        return member.is_lost or self._avoid_until.get(member.url, 0.0) > time.monotonic()


def _rank(member: EngineMember, sticky: str) -> bytes:
    """Rendezvous hashing (Thaler and Ravishankar, 1998): a member that joins or leaves moves the
    keys of no other pair."""
    key = f"{member.name}\0{sticky}".encode()
    return hashlib.blake2b(key, digest_size=8).digest()
