"""`mainspring events`: what happened to processes, and what people did."""

import asyncio
import json
import re
import sys
import textwrap
from datetime import timedelta
from typing import Annotated, Any

import typer

from cli.options import Home, Json, tell, with_database
from cli.terminal_text import plain
from mainspring.ids import CampaignId
from mainspring.status.event import EventKind

FOLLOW_S = 1.0
FOLLOWED = 200
"""Newest events that are looked at while they are followed: more in a second are left out."""
MOST = 100_000
"""Largest number of an age: Postgres has a first day."""
_SINCE = re.compile(r"(\d+)\s*(s|min|m|h|d)")
_UNITS = {"s": "seconds", "min": "minutes", "m": "minutes", "h": "hours", "d": "days"}

app = typer.Typer()


@app.command()
def events(
    name: Annotated[
        str | None,
        typer.Argument(help="Name of a campaign or other run (default: events of all)."),
    ] = None,
    kinds: Annotated[
        list[EventKind] | None, typer.Option("--kind", help="Kind of the events (repeatable).")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Age of the oldest event, as 30min, 2h or 1d."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of events to list, the newest.")] = 40,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new events until Ctrl-C.")
    ] = False,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """List what happened: processes that ended and were replaced, commands of people.

    The newest event is last. Times are UTC. Events of nodes and of the store are shown with each
    campaign of that time.
    """
    age = None if since is None else _age(since)
    say = _print_json if as_json else _print_lines

    async def go(db: Any) -> None:
        from infra.db.runs.events import newest

        campaign = None if name is None else await _named(db, name)
        chosen = frozenset(kinds or ())
        seen = {}
        if follow:
            before = await newest(db, campaign, kinds=chosen, limit=FOLLOWED)
            seen = {event.id: event.count for event in before}
        found = await newest(db, campaign, kinds=chosen, since=age, limit=limit)
        if as_json and not follow:
            return typer.echo(json.dumps([event.as_dict() for event in found]))
        say(found)
        if not found and not follow:
            tell("nothing happened")
        while follow:
            seen |= {event.id: event.count for event in found}
            await asyncio.sleep(FOLLOW_S)
            found = await newest(db, campaign, kinds=chosen, limit=FOLLOWED)
            # What is counted in a row that was printed is news, too.
            say([event for event in found if seen.get(event.id) != event.count])

    try:
        with_database(home, go, what="")
    except KeyboardInterrupt:
        if not follow:
            raise


async def _named(db: Any, name: str) -> Any:
    """A stored campaign, or one that was deleted and is told of. Raises UnknownId."""
    from infra.db.fence import UnknownId
    from infra.db.naming import campaign_named
    from infra.db.runs.events import newest

    try:
        return (await campaign_named(db, name)).id
    except UnknownId:
        if not await newest(db, CampaignId(name), limit=1):
            raise
        return CampaignId(name)


def _print_json(found: Any) -> None:
    for event in found:
        typer.echo(json.dumps(event.as_dict()))
    sys.stdout.flush()


def _print_lines(found: Any) -> None:
    """On a terminal folded between words, so that ids stay whole; else a line for each."""
    from cli.tables import Screen
    from mainspring.words.events import lines

    screen = Screen()
    for line in lines(found):
        time = f"{line.at:%Y-%m-%d %H:%M:%S}  "
        text = plain(time + line.text)  # before it is folded: what is removed takes no room
        if screen.is_terminal:
            text = textwrap.fill(
                text,
                screen.width,
                subsequent_indent=" " * len(time),
                break_long_words=False,
                break_on_hyphens=False,
            )
        screen.print(text, soft_wrap=True)


def _age(given: str) -> timedelta:
    """Raises UsageError."""
    match = _SINCE.fullmatch(given.strip())
    if match is None or int(match[1]) > MOST:
        from mainspring.errors import UsageError

        raise UsageError(
            f"--since {given} is no time", remedy="give a number and s, min, h or d, as in 2h"
        )
    return timedelta(**{_UNITS[match[2]]: int(match[1])})
