"""`mainspring agents ...`: bundles of clients that run as programs in sandboxes."""

import json
from typing import Annotated

import typer

from cli.options import Json
from cli.terminal_text import echo

Name = Annotated[
    str, typer.Argument(metavar="NAME[@VERSION]", help="Client, at the known version or another.")
]

app = typer.Typer(
    name="agents", help="Install coding agents for sandboxes of this machine.", no_args_is_help=True
)


@app.command("add")
def add(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME[@VERSION]...", help="Clients, at the known version or another."
        ),
    ],
    as_json: Json = False,
) -> None:
    """Make the bundle of a client with npm or pip, once, by the lock file of the known version.

    Run it on every sandbox node. Nodes mount bundles read-only; nothing is installed in a
    rollout.
    """
    from cli.operations.machine.agent_bundles import add_bundles

    added = add_bundles(names)
    if as_json:
        typer.echo(
            json.dumps(
                [
                    {
                        "bundle": bundle.name,
                        "folder": str(bundle.folder),
                        "is_new": is_new,
                        "is_locked": bundle.manifest.is_locked,
                    }
                    for bundle, is_new in added
                ]
            )
        )
        return
    for bundle, is_new in added:
        echo(f"{bundle.name}: {'made' if is_new else 'present'} in {bundle.folder}")
        if not bundle.manifest.is_locked:
            echo("  no lock file is of this version: npm or pip chose what it brings")


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the clients that are installed here, and those that can be."""
    from dataclasses import asdict

    from cli.operations.machine.agent_bundles import list_bundles

    rows = list_bundles()
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows]))
        return
    from cli.tables import Screen, Table

    table = Table("client", "version", "installed", "needs of an image")
    for row in rows:
        needs = [
            *([f"glibc {row.min_glibc}"] if row.min_glibc else []),
            *([f"Python {row.python}"] if row.python else []),
        ]
        installed = "yes" if row.is_here else "no"
        table.add_row(row.name, row.version, installed, " or ".join(needs))
    Screen().print(table)


@app.command("check")
def check(name: Name, as_json: Json = False) -> None:
    """Run the client's --version in a sandbox, and compare its files with the manifest."""
    from cli.operations.machine.agent_bundles import check_bundle

    output = check_bundle(name)
    echo(json.dumps({"client": name, "output": output}) if as_json else f"{name}: {output}")


@app.command("remove")
def remove(name: Name, as_json: Json = False) -> None:
    """Remove the bundle of a client. Sandboxes that are open keep it."""
    from cli.operations.machine.agent_bundles import remove_bundle

    removed = remove_bundle(name)
    echo(json.dumps({"removed": removed}) if as_json else f"{removed}: removed")
