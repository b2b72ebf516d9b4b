"""`mainspring view`: the live viewer, until it is interrupted."""

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.options import Home, hint, tell
from cli.terminal_text import echo
from mainspring.errors import UsageError

NUM_ROLLOUTS = 500

app = typer.Typer()


@app.command()
def view(
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="Port to listen on; if it is in use, the next free one."
        ),
    ] = 8600,
    host: Annotated[
        str, typer.Option(help="Address to listen on; another than loopback needs --token-file.")
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Host name that the viewer answers to as well. Repeat for more."
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File whose first line is the token that readers have to give."),
    ] = None,
    freeze: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write the pages into this new folder instead: files that need no server.",
        ),
    ] = None,
    campaign: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="With --freeze: run to copy. Repeat for more; without it, the newest 50.",
        ),
    ] = None,
    rollouts: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="With --freeze: number of rollouts of each run, failed ones first (500).",
            show_default=False,
        ),
    ] = None,
    actions: Annotated[
        bool | None,
        typer.Option(
            "--actions/--no-actions",
            help="Offer actions on the pages: retry, label, pause, cancel, drain and others.",
        ),
    ] = None,
    home: Home = None,
) -> None:
    """Show runs, rollouts, tasks and machines in a browser, live; read-only without --actions."""
    import asyncio
    from functools import partial

    from cli.operations.runs.stored_run import waits_here
    from infra.log_setup import set_up
    from mainspring.config.settings import load_settings
    from view.access import is_loopback
    from view.server import ViewOptions, check, serve

    if freeze is not None:
        from cli.operations.runs.frozen_pages import freeze_runs
        from cli.progress import counting

        with counting("pages") as told:
            most = NUM_ROLLOUTS if rollouts is None else rollouts
            copy = asyncio.run(freeze_runs(home, freeze, campaign or [], most, told))
        echo(str(copy.first))
        hint(f"{copy.num_pages:,} pages; open {copy.first.absolute().as_uri()}")
        return
    for option, value in (("--campaign", campaign), ("--rollouts", rollouts)):
        if value is not None and value != []:
            raise UsageError(
                f"{option} chooses what --freeze copies", remedy="give --freeze DIR as well"
            )
    options = ViewOptions(host, port, tuple(allow_host or ()), token_file)
    check(options)
    settings = load_settings(home)
    set_up(settings.log_format)
    if not is_loopback(host):
        tell(
            f"warning: {host} is reached without TLS: the token and all pages can be read on the "
            "way; put a proxy with a certificate before it"
        )
    offered: Any = ()
    if settings.view_actions if actions is None else actions:
        from cli.operations.acts.offered import all_actions

        offered = all_actions(home)
    here = partial(waits_here, settings.home)
    asyncio.run(serve(options, home, typer.echo, offered, here))
