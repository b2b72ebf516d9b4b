"""`mainspring db upgrade | current | reindex`: the configured database: its schema, its search."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.options import Home, Json, with_database
from cli.terminal_text import echo
from mainspring.errors import ConfigError

COUNTED_EVERY = 20
"""Rollouts between two counts of what is left."""

app = typer.Typer(
    name="db",
    help="Show and upgrade the schema of the database; build its search again.",
    no_args_is_help=True,
)


@app.command("upgrade")
def upgrade(home: Home = None) -> None:
    """Upgrade the database to the schema of this program. Safe to repeat."""
    from migrations import upgrade

    url = _database_url(home)
    before = upgrade.current(url)
    upgrade.upgrade(url, waiting=lambda reason: echo(reason, err=True))
    after, known = upgrade.current(url), upgrade.head()
    if before != after:
        echo(f"{before or 'empty'} -> {after}")
    elif after == known:
        echo(f"already at {after}")
    else:
        echo(f"already at {after}, which accepts this program ({known})")


@app.command("current")
def current(home: Home = None, as_json: Json = False) -> None:
    """Show the migration of the database, the one this program needs, and who is connected."""
    from migrations import upgrade

    schema, processes = upgrade.look(_database_url(home))
    needed = upgrade.head()
    ready = schema is not None and schema.accepts(needed)
    if as_json:
        answer = {
            "current": schema and schema.revision,
            "needed": needed,
            "ready": ready,
            "oldest_accepted": schema and schema.oldest_accepted,
            "processes": [asdict(process) for process in processes],
        }
        typer.echo(json.dumps(answer))
        return
    stored = schema.revision if schema else "empty"
    if ready:
        echo(
            f"{stored} ({'up to date' if stored == needed else f'accepts this program, {needed}'})"
        )
    elif schema is not None and stored > needed:
        echo(f"{stored}, which does not accept this program ({needed}): install a newer version")
    else:
        echo(f"{stored}, needs {needed}: run `mainspring db upgrade`")
    if schema is not None and schema.oldest_accepted:
        echo(f"accepts programs of {schema.oldest_accepted} and newer")
    for process in processes:
        echo(f"  connected: {process}")


@app.command("reindex")
def reindex(
    missing: Annotated[
        bool,
        typer.Option(
            "--missing", help="Only rollouts that no search finds yet: resumes a reindex."
        ),
    ] = False,
    home: Home = None,
) -> None:
    """Build what `mainspring rollout search` reads again, from the stored rollouts.

    A rollout worker does this for each rollout that ends, and for all after an upgrade. Searches
    find the old words of a rollout until it has its new ones. Any number of these commands, and
    workers, share the work.
    """
    from cli.progress import counting
    from infra.db.rollouts import search_pieces

    async def build(db: Any) -> tuple[int, int]:
        if not missing:
            await search_pieces.forget(db)
        total = left = await search_pieces.num_unsearched(db)
        done = 0
        with counting("rollouts") as progress:
            progress(0, total)
            while await search_pieces.fill_next(db) is not None:
                done += 1
                if done % COUNTED_EVERY == 0:  # workers fill, too
                    left = await search_pieces.num_unsearched(db)
                    progress(max(0, total - left), total)
        return done, await search_pieces.num_unsearched(db)

    try:
        done, left = with_database(home, build)
    except KeyboardInterrupt:
        echo("stopped: `mainspring db reindex --missing` builds the rest", err=True)
        raise
    rest = f"; {left:,} are left to others" if left else ""
    echo(f"{done:,} rollout{'s' * (done != 1)} can be searched{rest}")


def _database_url(home: Path | None) -> str:
    from mainspring.config.settings import load_settings

    settings = load_settings(home)
    if not settings.database_url:
        raise ConfigError(
            f"no database is configured and none is recorded in {settings.stack_file}",
            remedy="run `mainspring up`, or set MAINSPRING_DATABASE_URL=postgresql://...",
        )
    return settings.session_url
