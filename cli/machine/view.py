"""`mainspring view`: the live viewer, until it is interrupted."""

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.options import Home, tell

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

    from infra.log_setup import set_up
    from mainspring.config.settings import load_settings
    from view.access import is_loopback
    from view.server import ViewOptions, check, serve

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
    asyncio.run(serve(options, home, typer.echo, offered))
