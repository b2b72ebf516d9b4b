"""`mainspring node ...`: the container hosts; empty one before maintenance."""

import json
from typing import Annotated, Any

import typer

from cli.options import Home, Json, with_database
from cli.terminal_text import echo

app = typer.Typer(name="node", help="List and drain sandbox nodes.", no_args_is_help=True)


@app.command("list")
def list_(home: Home = None, as_json: Json = False) -> None:
    """List sandbox nodes with load and status."""
    from infra.db.nodes import nodes

    rows = [_row(record) for record in with_database(home, nodes.list_nodes)]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    from cli.tables import Screen, Table
    from mainspring.words.figures import age, clock_told

    table = Table("node", "status", "open", "takes new", "backends", "disk", "memory", "seen")
    for row in rows:
        table.add_row(
            row["node"],
            row["status"],
            f"{row['num_open']}/{row['capacity']}",
            "yes" if row["takes_new"] else row["refusal"] or row["status"],
            ", ".join(row["backends"]),
            _gb(row["disk_free_mb"]),
            _gb(row["memory_free_mb"]),
            age(row["seen_s"]),
        )
    table.caption = "disk and memory that are free; how long ago the node was seen"
    Screen().print(table)
    for row in rows:
        if sentence := clock_told(row["clock_off_s"]):
            echo(f"node {row['node']}: {sentence}")


@app.command()
def drain(
    name: Annotated[str, typer.Argument(metavar="NODE", help="Id of the node.")],
    undo: Annotated[
        bool, typer.Option("--undo", help="Let the node take new sandboxes again.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until no sandbox is open on the node.")
    ] = False,
    timeout_s: Annotated[
        float, typer.Option(min=0, help="Give up waiting after this many seconds.")
    ] = 3600.0,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Let a node open no new sandboxes; open ones finish.

    A node that restarts stays drained until you use --undo.
    """
    from cli.operations.machine.drain import drain as ask
    from infra.db.runs.events import person
    from mainspring.errors import UsageError
    from mainspring.ids import NodeId

    if undo and wait:
        raise UsageError("--undo and --wait exclude each other", remedy="give one of them")

    async def go(db: Any) -> Any:
        wait_s = timeout_s if wait else None
        return await ask(db, NodeId(name), undo=undo, wait_s=wait_s, by=person())

    row = _row(with_database(home, go, ""))
    if as_json:
        typer.echo(json.dumps(row))
    elif undo:
        echo(f"node {name} is told to take new work again")
    elif row["status"] == "drained":
        echo(f"node {name} is drained: it may be stopped")
    else:
        echo(f"node {name} is told to drain; {row['num_open']} sandboxes are open on it")


def _row(record: Any) -> dict[str, Any]:
    report = record.said
    return {
        "node": report.id,
        "status": record.status.value,
        "num_open": record.num_open,
        "num_leased": record.num_leased,
        "capacity": report.capacity,
        "takes_new": record.status.value == "up" and report.refusal is None,
        "refusal": report.refusal,
        "draining": record.draining,
        "backends": report.backends,
        "images": report.images,
        "disk_free_mb": report.disk_free_mb,
        "memory_free_mb": report.memory_free_mb,
        "version": report.version,
        "started_at": record.started_at.isoformat(timespec="seconds"),
        "seen_at": record.seen_at.isoformat(timespec="seconds"),
        "seen_s": round(record.seen_s, 1),
        "clock_off_s": round(record.clock_off_s, 1),
    }


def _gb(mb: int) -> str:
    return f"{mb / 1024:.1f} GB" if mb < 10_240 else f"{mb / 1024:.0f} GB"
