"""`mainspring campaign delete`: removes an ended campaign or other run."""

import json
import sys
from typing import Annotated, Any

import typer

from cli.options import Home, Json, RunName, tell, with_services
from cli.terminal_text import echo
from mainspring.words.figures import file_size


def delete(
    name: RunName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Delete an ended campaign or other run: its rollouts, files and workflows.

    Tasks and images stay. If the command is interrupted, repeat it.
    """
    from cli.operations.keeping import campaign_removal
    from cli.progress import counting
    from mainspring.errors import UsageError

    async def look(services: Any) -> Any:
        return await campaign_removal.look(
            services.client, services.db, services.settings.home, name
        )

    doomed = with_services(home, look)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(
                f"{doomed.campaign} and its {doomed.num_rollouts} rollouts would be deleted for "
                "good",
                remedy="add --yes; `mainspring campaign archive` keeps a copy",
            )
        what = f"{doomed.num_rollouts} rollouts, {file_size(doomed.num_bytes)} of files"
        typer.confirm(f"Delete {doomed.campaign} ({doomed.status}; {what})?", abort=True, err=True)

    async def go(services: Any) -> Any:
        with counting("rollouts") as progress:
            return await campaign_removal.delete(
                services.client, services.db, services.settings.home, doomed, tell, progress
            )

    done = with_services(home, go)
    if as_json:
        echo(json.dumps(done.as_dict()))
        return
    echo(
        f"deleted {done.campaign}: {done.num_rollouts} rollouts, {file_size(done.num_bytes)} of "
        "files" + ("" if done.num_workflows is None else f", {done.num_workflows} workflows")
    )
    for sentence in done.kept:
        echo(sentence)
    if done.num_workflows is None:
        echo("its workflows stay in Temporal until the namespace's retention removes them")
