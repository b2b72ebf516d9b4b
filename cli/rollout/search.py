"""`mainspring rollout search`: where words stand in what agents did."""

import json
import textwrap
from dataclasses import asdict
from typing import Annotated, Any

import typer

from cli.options import Home, Json, with_database
from cli.terminal_text import plain
from mainspring.trajectories.search_query import SearchKey

EXCERPT_LINES = 3
"""Lines of an excerpt at the screen's width."""


def search(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="QUERY", help='Words, "phrases", -word, part:output, exit:1, version:>=10.'
        ),
    ],
    campaign: Annotated[
        str | None, typer.Option(help="Name of the campaign or other run (default: all).")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Number of places to list.")] = 20,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Search commands, outputs, replies, patches and tests of ended rollouts, newest first.

    All words and conditions must hold, and none with a minus before it. Conditions are part:
    exit: verdict: stop: version: step: campaign: task: and label:. A query that begins with a minus
    comes after --.
    """
    from infra.db.naming import campaign_named
    from infra.db.reading import search_hits
    from infra.db.rollouts.search_pieces import num_unsearched
    from mainspring.trajectories.search_query import SearchCondition, SearchQuery, parse

    # A shell has taken the quotes of a phrase away.
    query = parse(" ".join(map(_quoted, words)))

    async def read(db: Any) -> Any:
        chosen = query
        if campaign is not None:
            name = (await campaign_named(db, campaign)).id
            only = SearchCondition(SearchKey.CAMPAIGN, "=", name)
            chosen = SearchQuery(query.words, (*query.conditions, only))
        found = await search_hits.search(db, chosen, size=limit)
        return found, await num_unsearched(db)

    found, num_missing = with_database(home, read)
    if as_json:
        document = asdict(found) | {"rollouts_not_searched": num_missing}
        typer.echo(json.dumps(document, default=lambda value: value.isoformat()))
        return
    _print(found, num_missing)


def _quoted(word: str) -> str:
    """An argument with a space is a phrase, unless it is a whole query."""
    return f'"{word}"' if " " in word and '"' not in word and ":" not in word else word


def _print(found: Any, num_missing: int) -> None:
    from cli.tables import Screen

    screen = Screen()
    for hit in found.hits:
        screen.print(plain(_line(hit)), soft_wrap=True, style="bold")
        excerpt = textwrap.wrap(plain(f"{hit.before}{hit.found}{hit.after}"), screen.width - 2)
        for line in excerpt[:EXCERPT_LINES]:
            screen.print(f"  {line}", soft_wrap=True)
    if found.hits:
        listed = f"; {len(found.hits)} listed" if found.after else ""
        screen.print(f"{found.counts()}{listed}", style="dim", soft_wrap=True)
    else:
        screen.print(found.nothing(), soft_wrap=True)
    if num_missing:
        rollouts = "1 rollout" if num_missing == 1 else f"{num_missing:,} rollouts"
        screen.print(
            f"{rollouts} cannot be searched yet: start a rollout worker, or run "
            "`mainspring db reindex --missing`",
            style="dim",
            soft_wrap=True,
        )


def _line(hit: Any) -> str:
    where = hit.part if hit.turn is None else f"turn {hit.turn} {hit.part}"
    code = "" if hit.returncode is None else f" exit {hit.returncode}"
    return f"{hit.rollout}  {where}{code}  {hit.verdict or hit.stop_reason or ''}".rstrip()
