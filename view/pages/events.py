"""Events: what happened to processes and was done by people, the newest first.

The address has the run, the kind and the number. Imported by `pages`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from infra.db.naming import campaign_named
from infra.db.runs import events
from infra.db.runs.events import EventRecord
from mainspring.errors import UsageError
from mainspring.status import EventKind
from mainspring.words.events import EventLine, lines
from view.page import Page
from view.page_request import PageRequest
from view.viewer import Viewer

SHOWN = 100
MOST = events.MAX_ROWS


@dataclass(frozen=True, slots=True)
class EventsPage:
    campaign: str | None
    """None: of all runs."""
    kind: str
    kinds: Sequence[str]
    lines: Sequence[EventLine]
    events: Sequence[EventRecord]
    more: int | None
    """Number to ask for where there may be older ones."""


async def read(viewer: Viewer, asked: PageRequest) -> EventsPage:
    name, kind = asked.query.get("c"), asked.query.get("kind", "")
    if kind and kind not in list(EventKind):
        raise UsageError(
            f"no event is of the kind {kind!r}", remedy=f"one of {', '.join(EventKind)}"
        )
    limit = min(asked.number("n", SHOWN) or SHOWN, MOST)
    async with viewer.part("the events") as db:
        campaign = None if name is None else (await campaign_named(db, name)).id
        kinds = [EventKind(kind)] if kind else []
        found = await events.newest(db, campaign, kinds=kinds, limit=limit)
    is_more = len(found) == limit < MOST
    return EventsPage(
        campaign=campaign,
        kind=kind,
        kinds=list(EventKind),
        lines=lines(found)[::-1],
        events=found[::-1],
        more=min(limit * 5, MOST) if is_more else None,
    )


PAGES = (Page("/events", "events.html.j2", read),)
