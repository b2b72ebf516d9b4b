"""`mainspring up | down | status`: the embedded Postgres and Temporal."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cli.options import Home, Json, hint, run_spoken
from cli.terminal_text import echo, plain

PostgresPort = Annotated[
    int | None,
    typer.Option(
        min=1, max=65535, help="Port of Postgres; fails if it is taken (default: a free one)."
    ),
]
TemporalPort = Annotated[
    int | None,
    typer.Option(
        min=1, max=65535, help="Port of Temporal; fails if it is taken (default: a free one)."
    ),
]
UiPort = Annotated[
    int | None,
    typer.Option(
        min=1, max=65535, help="Port of Temporal's UI; fails if it is taken (default: a free one)."
    ),
]

app = typer.Typer()


@app.command()
def up(
    home: Home = None,
    postgres_port: PostgresPort = None,
    temporal_port: TemporalPort = None,
    ui_port: UiPort = None,
    as_json: Json = False,
) -> None:
    """Start local Postgres and Temporal. Does nothing if they are running."""

    from cli.operations.machine.embedded_stack import up as bring_up
    from cli.tables import Screen
    from infra.stack.ports import Forced

    forced = Forced(postgres_port, temporal_port, ui_port)
    with Screen(stderr=True).status("starting Postgres and Temporal"):
        what = "starting Postgres and Temporal"
        run_spoken(home, bring_up(_home(home), forced), what)
    _show(home, as_json)
    if not as_json:
        hint("`mainspring quickstart`, or `mainspring train FILE` with your own campaign")


@app.command()
def down(home: Home = None, as_json: Json = False) -> None:
    """Stop local Postgres and Temporal. Data is kept. Workers you started keep running.

    Refused while a command runs that would start them again.
    """
    from cli.operations.machine.embedded_stack import down as bring_down
    from cli.operations.machine.supervisor import supervised
    from mainspring.errors import UsageError

    if running := supervised(_home(home)):
        commands = ", ".join(f"process {pid} runs {name}" for name, pid in running)
        raise UsageError(
            f"{commands}, and would start them again",
            remedy="stop it first: Ctrl-C there, `kill PROCESS`, or for a campaign "
            f"`mainspring train --name {running[0][0]} --stop`",
        )
    stopped = run_spoken(home, bring_down(_home(home)), "stopping Temporal and Postgres")
    if as_json:
        typer.echo(json.dumps({"stopped": stopped}))
    else:
        echo(f"stopped {', '.join(stopped)}" if stopped else "nothing was running")


@app.command()
def status(home: Home = None, as_json: Json = False) -> None:
    """Show Postgres, Temporal and the processes of this home. Exits 3 if a service is down.

    Processes are those of this machine; `mainspring node list` has the nodes of all machines.
    """
    if not _show(home, as_json):
        raise typer.Exit(3)


def _home(home: Path | None) -> Path:
    from mainspring.config.settings import configured_settings

    return configured_settings(home).home


def _show(home: Path | None, as_json: bool) -> bool:
    from rich.text import Text

    from cli.operations.machine.embedded_stack import ServiceState
    from cli.operations.machine.embedded_stack import status as look
    from cli.operations.machine.home_processes import working_in
    from cli.tables import Screen, Table
    from infra.db.connect import open_database, with_recorded_namespace
    from infra.stack import viewer_address
    from mainspring.config.settings import load_settings

    async def ask() -> tuple[list[ServiceState], str]:
        settings = load_settings(home)
        states = await look(settings.home)
        if states[0].healthy:
            async with open_database(settings, pool_size=1) as db:
                settings = await with_recorded_namespace(settings, db)
        return states, settings.temporal_link

    states, link = run_spoken(home, ask())
    folder = _home(home)
    processes, viewer = working_in(folder), viewer_address.found(folder)
    healthy = all(state.healthy for state in states)
    if as_json:
        services = [state.as_dict() for state in states]
        told = {"services": services, "temporal_ui": link, "viewer": viewer}
        typer.echo(json.dumps(told | {"processes": [asdict(each) for each in processes]}))
        return healthy
    table = Table("part", "address", "pid", "state")
    for state in states:
        word = Text(plain(state.problem or "answers"), style="red" if state.problem else "green")
        table.add_row(state.service, state.address or "-", str(state.pid or "-"), word)
    for each in processes:
        state = f"runs {each.run}" if each.run else "runs"
        table.add_row(each.command or "-", "-", str(each.pid), state)
    console = Screen()
    console.print(table)
    if viewer:
        console.print(f"viewer       {viewer}", soft_wrap=True)
    if link and states[-1].healthy:
        console.print(f"Temporal UI  {link}", soft_wrap=True)
    return healthy
