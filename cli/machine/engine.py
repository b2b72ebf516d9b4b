"""`mainspring engine ...`: the engines that serve a campaign's policy; they come and go."""

import json
from typing import Annotated, Any

import typer

from cli.options import CampaignName, Home, Json, with_database
from cli.terminal_text import echo

EngineName = Annotated[str, typer.Argument(metavar="ENGINE", help="Name or address of the engine.")]

app = typer.Typer(
    name="engine", help="List, add, drain and remove a campaign's engines.", no_args_is_help=True
)


@app.command("list")
def list_(name: CampaignName, home: Home = None, as_json: Json = False) -> None:
    """List the engines of a campaign with load and status."""

    async def go(db: Any, record: Any, key: Any) -> Any:
        from cli.operations.machine import campaign_engines

        campaign_engines.require_engines(record)
        return await campaign_engines.listed(db, record, key)

    fleet = _with_campaign(home, name, go)
    if as_json:
        return typer.echo(json.dumps([_row(member) for member in fleet]))
    from cli.tables import Screen, Table
    from mainspring.words.figures import age

    table = Table("engine", "status", "requests", "KV", "weights", "seen")
    for member in fleet:
        waiting = f"+{member.num_waiting}" if member.num_waiting else ""
        requests = f"{member.num_running}{waiting}"
        table.add_row(
            member.name,
            member.status.value,
            requests,
            "" if member.kv_used is None else f"{member.kv_used:.0%}",
            member.version.partition("-")[0],
            "never" if member.seen_s is None else age(member.seen_s),
        )
    table.caption = (
        "requests: running+waiting; KV: cache in use\nweights: policy version; seen: last answer"
    )
    Screen().print(table)
    for member in fleet:
        if member.name != member.url:
            echo(f"engine {member.name} is at {member.url}")
        if member.fault:
            echo(f"engine {member.name}: {member.fault}")


@app.command()
def add(
    name: CampaignName,
    url: Annotated[str, typer.Argument(help="Address of the engine, as http://HOST:PORT.")],
    engine_name: Annotated[
        str, typer.Option("--name", help="Name of the engine (default: its address).")
    ] = "",
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Add an engine that runs already to a campaign.

    It gets the campaign's weights, and then requests, within seconds. MAINSPRING_POLICY_API_KEY
    has the key of the engines.
    """

    async def go(db: Any, record: Any, key: Any) -> Any:
        from cli.operations.machine import campaign_engines
        from infra.db.runs.events import person

        return await campaign_engines.add(db, record, url, engine_name, key, person())

    member = _with_campaign(home, name, go)
    if as_json:
        return typer.echo(json.dumps(_row(member)))
    echo(f"engine {member.name} is a member of campaign {name}")


@app.command()
def drain(
    name: CampaignName,
    engine: EngineName,
    undo: Annotated[
        bool, typer.Option("--undo", help="Let the engine get new requests again.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the engine has no request.")
    ] = False,
    timeout_s: Annotated[
        float, typer.Option(min=0, help="Give up waiting after this many seconds.")
    ] = 3600.0,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Send an engine no new requests; those in it finish."""
    from mainspring.errors import UsageError

    if undo and wait:
        raise UsageError("--undo and --wait exclude each other", remedy="give one of them")

    async def go(db: Any, record: Any, key: Any) -> Any:
        from cli.operations.machine import campaign_engines
        from infra.db.runs.events import person

        campaign_engines.require_engines(record)
        wait_s = timeout_s if wait else None
        return await campaign_engines.drain(
            db, record, engine, key, undo=undo, wait_s=wait_s, by=person()
        )

    member = _with_campaign(home, name, go)
    if as_json:
        return typer.echo(json.dumps(_row(member)))
    if undo:
        echo(f"engine {member.name} gets new requests again")
    elif member.status.value == "drained":
        echo(f"engine {member.name} is drained: it may be stopped")
    else:
        echo(f"engine {member.name} gets no new requests; {member.load} are in it")


@app.command()
def remove(
    name: CampaignName, engine: EngineName, home: Home = None, as_json: Json = False
) -> None:
    """Remove an engine from a campaign. Requests that are in it finish.

    An engine that joined by itself (`mainspring serve --campaign`) is stopped.
    """

    async def go(db: Any, record: Any, key: Any) -> Any:
        from cli.operations.machine import campaign_engines
        from infra.db.runs.events import person

        del key
        campaign_engines.require_engines(record)
        return await campaign_engines.remove(db, record, engine, person())

    member = _with_campaign(home, name, go)
    if as_json:
        return typer.echo(json.dumps(_row(member)))
    echo(f"engine {member.name} is no member of campaign {name} any more")


def _with_campaign(home: Any, name: str, call: Any) -> Any:
    """`call` with the database, the stored campaign and the engines' key."""

    async def go(db: Any) -> Any:
        from infra.db.naming import campaign_named
        from mainspring.config.settings import load_settings

        record = await campaign_named(db, name)
        return await call(db, record, load_settings(home).policy_api_key)

    return with_database(home, go)


def _row(member: Any) -> dict[str, Any]:
    return {
        "engine": member.name,
        "url": member.url,
        "status": member.status.value,
        "origin": member.origin.value,
        "draining": member.draining,
        "num_running": member.num_running,
        "num_waiting": member.num_waiting,
        "kv_used": member.kv_used,
        "weights": member.version,
        "model": member.model,
        "vocab_size": member.vocab_size,
        "seen_s": None if member.seen_s is None else round(member.seen_s, 1),
        "fault": member.fault,
    }
