"""`mainspring db upgrade | current`: the schema of the configured database."""

import json
from pathlib import Path

import typer

from cli.options import Home, Json
from cli.terminal_text import echo
from mainspring.errors import ConfigError

app = typer.Typer(
    name="db", help="Show and upgrade the schema of the database.", no_args_is_help=True
)


@app.command("upgrade")
def upgrade(home: Home = None) -> None:
    """Upgrade the database to the schema of this program. Safe to repeat."""
    from migrations import upgrade

    url = _database_url(home)
    before = upgrade.current(url)
    upgrade.upgrade(url)
    after = upgrade.head()
    echo(f"already at {after}" if before == after else f"{before or 'empty'} -> {after}")


@app.command("current")
def current(home: Home = None, as_json: Json = False) -> None:
    """Show the migration of the database, and the one this program needs."""
    from migrations import upgrade

    stored, needed = upgrade.current(_database_url(home)), upgrade.head()
    if as_json:
        typer.echo(json.dumps({"current": stored, "needed": needed, "ready": stored == needed}))
    elif stored == needed:
        echo(f"{stored} (up to date)")
    else:
        echo(f"{stored or 'empty'}, needs {needed}: run `mainspring db upgrade`")


def _database_url(home: Path | None) -> str:
    from mainspring.config.settings import load_settings

    settings = load_settings(home)
    if not settings.database_url:
        raise ConfigError(
            f"no database is configured and none is recorded in {settings.stack_file}",
            remedy="run `mainspring up`, or set MAINSPRING_DATABASE_URL=postgresql://...",
        )
    return settings.session_url
