"""`mainspring rollout label`: give labels and notes to rollouts, to choose them by."""

import json
from typing import Annotated, Any

import typer

from cli.options import Home, Json, with_database
from cli.terminal_text import echo


def label(
    ids: Annotated[
        list[str], typer.Argument(metavar="ROLLOUT...", help="Ids of the rollouts to label.")
    ],
    add: Annotated[
        list[str] | None,
        typer.Option(metavar="LABEL", help="Label to give, as `good`. Repeat for more."),
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option(metavar="LABEL", help="Label to take away. Repeat for more."),
    ] = None,
    note: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Note that replaces the one before; an empty one removes it."
        ),
    ] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Give labels or a note to rollouts, or take them away. Rewards and training do not read them.

    A label is about the attempt that you looked at: when the rollout is retried, it is not chosen
    by that label any more. `rollout list`, `search`, `export` and `retry` choose by label.
    """
    from cli.operations.runs import labelling

    asked = labelling.checked(add or (), remove or (), note)

    async def go(db: Any) -> Any:
        return await labelling.label(db, ids, asked)

    named, changed = with_database(home, go)
    if as_json:
        typer.echo(json.dumps({"rollouts": named, "changed": changed}))
        return
    which = named[0] if len(named) == 1 else f"{len(named)} rollouts"
    if not changed:
        echo(f"{which}: nothing to change")
        return
    of = "" if len(named) == len(changed) else f", of which {len(changed)} changed"
    echo(f"{which}{of}: {asked.told()}")
