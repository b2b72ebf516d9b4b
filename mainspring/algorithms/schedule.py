"""In which order groups are admitted, trained and replaced: by time, or by number alone. Pure.

Under Schedule.REPRODUCIBLE nothing that a step takes depends on time. The groups of a campaign are
numbered draws of its tasks: step n trains the draws of its own G places, and each place is filled
by the first draw that a step can use. A version is served until all groups under it are in, so that
each group has one version, `max_staleness` steps behind the weights it is trained on. A campaign
that is prolonged keeps the numbers that it had: its new places have draws beyond all old ones.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from mainspring.status import GroupStatus

MAX_REPEATS = 1
"""Times a masked draw is played again, as it was, before its place takes another one."""
MAX_DRAWS = 1000
"""Draws of one place before a campaign is prolonged; far fewer flat groups end it."""
_USABLE = (GroupStatus.READY, GroupStatus.CONSUMED)


class Schedule(StrEnum):
    FASTEST = "fastest"
    """Groups are trained in the order in which they end, and new ones start as soon as there is
    room."""
    REPRODUCIBLE = "reproducible"
    """The same seed gives the same weights on CPU, whatever was killed and whenever."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A group that is there."""

    draw: int
    status: GroupStatus
    is_discarded: bool = False
    """An operator masked it: it is not wanted a second time."""


@dataclass(frozen=True, slots=True)
class Part:
    """Places that a campaign was planned or prolonged with, and their draws."""

    first_place: int
    num_places: int
    first_draw: int

    @property
    def place_after(self) -> int:
        return self.first_place + self.num_places

    def place_of(self, draw: int) -> int:
        return self.first_place + (draw - self.first_draw) % self.num_places


@dataclass(frozen=True, slots=True)
class Batches:
    """Which draws a step is made of, and under which policy version they are played."""

    num_steps: int
    groups_per_step: int
    max_staleness: int
    lengths: tuple[int, ...] = ()
    """Numbers of steps that it was planned with, each larger than those before; empty: it was never
    prolonged."""

    def parts(self) -> Iterator[Part]:
        """In order. Draws of a place are as far apart as its part has places: its second is the
        first one's number plus this."""
        place = draw = 0
        for num_steps in self.lengths or (self.num_steps,):
            part = Part(place, num_steps * self.groups_per_step - place, draw)
            yield part
            place, draw = part.place_after, draw + MAX_DRAWS * part.num_places

    def place_of(self, draw: int) -> int:
        """0-based, over all steps."""
        *_, part = (part for part in self.parts() if part.first_draw <= draw)
        return part.place_of(draw)

    def places(self, step: int) -> range:
        """Places of a step, which counts from 1."""
        return range((step - 1) * self.groups_per_step, step * self.groups_per_step)

    def version_of(self, step: int) -> int:
        """The policy version that plays the groups of a step."""
        return max(0, step - 1 - self.max_staleness)

    def next_draw(self, place: int, earlier: Sequence[Drawn]) -> int | None:
        """Draw that fills `place` next; None when it is filled, or a group is under way.

        A flat draw gives way to the next one. What was cancelled or masked tells nothing of its
        task and is played again under the same number, a masked one at most MAX_REPEATS times."""
        if any(group.status in (*_USABLE, GroupStatus.RUNNING) for group in earlier):
            return None
        part = next(part for part in self.parts() if place < part.place_after)
        first = part.first_draw + place - part.first_place
        newest = max((group.draw for group in earlier), default=first)
        statuses = [group.status for group in earlier if group.draw == newest]
        is_over = (
            GroupStatus.FLAT in statuses
            or statuses.count(GroupStatus.MASKED) > MAX_REPEATS
            or any(group.is_discarded for group in earlier if group.draw == newest)
        )
        return newest + part.num_places if is_over else newest

    def due(self, groups: Iterable[Drawn], *, first_step: int, published: int) -> list[int]:
        """Draws to start now, in order: of the steps from `first_step` on whose policy version is
        served. `groups`: at least all of these steps."""
        at = self._by_place(groups)
        last_step = min(self.num_steps, published + 1 + self.max_staleness)
        steps = range(first_step, last_step + 1)
        places = (place for step in steps for place in self.places(step))
        draws = (self.next_draw(place, at.get(place, ())) for place in places)
        return [draw for draw in draws if draw is not None]

    def servable(self, newest: int, groups: Iterable[Drawn]) -> int:
        """The latest version, at most `newest`, that no group needs an earlier one than. `groups`:
        at least those of the steps after `newest`."""
        at = self._by_place(groups)
        for step in range(newest + 1, min(self.num_steps, newest + self.max_staleness) + 1):
            if not all(self._is_filled(at.get(place, ())) for place in self.places(step)):
                return self.version_of(step)
        return newest

    def _by_place(self, groups: Iterable[Drawn]) -> Mapping[int, list[Drawn]]:
        by_place: defaultdict[int, list[Drawn]] = defaultdict(list)
        for group in groups:
            by_place[self.place_of(group.draw)].append(group)
        return by_place

    @staticmethod
    def _is_filled(groups: Sequence[Drawn]) -> bool:
        return any(group.status in _USABLE for group in groups)
