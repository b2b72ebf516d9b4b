"""`mainspring temporal setup | move`: a Temporal namespace of your own, made ready and changed."""

import json
from pathlib import Path
from typing import Annotated

import typer

from cli.options import Home, Json, hint, run_spoken
from cli.terminal_text import echo

app = typer.Typer(name="temporal", help="Set up your own Temporal server.", no_args_is_help=True)


@app.command()
def setup(
    retention_hours: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Hours for which the namespace is to keep closed workflows (advised: 72). "
            "Default: as it is.",
        ),
    ] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Register the search attributes of rollouts on the namespace. Safe to repeat.

    With --retention-hours, set also how long the namespace keeps closed workflows.
    """
    missing, namespace, hours = run_spoken(home, _register(home, retention_hours))
    if as_json:
        document = {"namespace": namespace, "registered": missing, "retention_hours": hours}
        typer.echo(json.dumps(document))
        return
    if missing:
        echo(f"registered on namespace {namespace}: {', '.join(missing)}")
    else:
        echo(f"namespace {namespace} has all search attributes")
    echo(f"it keeps closed workflows for {hours:g} h")


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


async def _register(home: Path | None, hours: int | None) -> tuple[list[str], str, float]:
    """Names of what was missing, the namespace, and its retention in hours."""
    from datetime import timedelta

    from temporalio.service import RPCError

    from infra.stack.temporal_server import (
        register_search_attributes,
        retention_of,
        set_retention,
    )
    from infra.temporal.connection import connect
    from mainspring.config.settings import load_settings
    from mainspring.errors import TemporalError

    client = await connect(load_settings(home))
    try:
        missing = await register_search_attributes(client)
        if hours is not None:
            await set_retention(client, timedelta(hours=hours))
        retention = await retention_of(client)
        return missing, client.namespace, retention.total_seconds() / 3600
    except RPCError as error:
        raise TemporalError(
            f"namespace {client.namespace} cannot be set up: {error.message}",
            remedy="this takes a namespace administrator; an SQL visibility store has few columns "
            "of each type, which other applications may use up",
        ) from None
