"""`mainspring temporal setup | move`: a Temporal namespace of your own, made ready and changed."""

import json
from pathlib import Path
from typing import Annotated

import typer

from cli.options import Home, Json, hint, run_spoken
from cli.terminal_text import echo

app = typer.Typer(name="temporal", help="Set up your own Temporal server.", no_args_is_help=True)


@app.command()
def setup(home: Home = None, as_json: Json = False) -> None:
    """Register the search attributes of rollouts on the namespace. Safe to repeat."""
    missing, namespace = run_spoken(home, _register(home))
    if as_json:
        typer.echo(json.dumps({"namespace": namespace, "registered": missing}))
    elif missing:
        echo(f"registered on namespace {namespace}: {', '.join(missing)}")
    else:
        echo(f"namespace {namespace} has all search attributes")


@app.command()
def move(
    namespace: Annotated[str, typer.Argument(help="Name of an existing namespace.")],
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Move to another Temporal namespace. Workflows in the old one are not moved."""
    before = run_spoken(home, _move(namespace, home))
    if as_json:
        typer.echo(json.dumps({"namespace": namespace, "before": before}))
        return
    echo(f"moved to namespace {namespace} (before: {before or 'none'})")
    hint("`mainspring campaign start FILE` resumes a campaign that ran in the old one")


async def _move(name: str, home: Path | None) -> str | None:
    from temporalio.service import RPCError

    from infra.db.connect import open_database
    from infra.db.store import identity, move_namespace, namespace
    from infra.temporal.connection import check_owner, connect
    from mainspring.config.settings import load_settings
    from mainspring.errors import TemporalError

    settings = load_settings(home).in_namespace(name)
    async with open_database(settings, pool_size=1) as db:
        before = await namespace(db)
        client = await connect(settings)
        try:
            await check_owner(client, settings.temporal_address, await identity(db))
        except RPCError as error:
            raise TemporalError(f"namespace {name} cannot be looked at: {error.message}") from None
        await move_namespace(db, name)
        await connect(settings, db)  # marks it
    return before


async def _register(home: Path | None) -> tuple[list[str], str]:
    from temporalio.service import RPCError

    from infra.stack.temporal_server import register_search_attributes
    from infra.temporal.connection import connect
    from mainspring.config.settings import load_settings
    from mainspring.errors import TemporalError

    client = await connect(load_settings(home))
    try:
        return await register_search_attributes(client), client.namespace
    except RPCError as error:
        raise TemporalError(
            f"namespace {client.namespace}: the search attributes cannot be registered: "
            f"{error.message}",
            remedy="this takes a namespace administrator; an SQL visibility store has few columns "
            "of each type, which other applications may use up",
        ) from None
