"""`mainspring tasks ...`: the tasks that are stored, and the images they need on this machine."""

import json
from typing import Annotated, Any

import typer

from cli.options import Home, Json, with_database
from cli.tasks.task_import import export, import_, remove
from cli.tasks.task_new import new
from cli.tasks.verify import verify

IMAGE_CHARS = 30
"""Shown of an image's name where ids have to fit as well: its end, which tells tasks apart."""

app = typer.Typer(name="tasks", help="Import, list, verify and export tasks.", no_args_is_help=True)
app.command("import")(import_)
app.command()(remove)
app.command()(export)
app.command()(new)
app.command()(verify)


@app.command("list")
def list_(
    source: Annotated[str | None, typer.Option(help="Task set to list, one task per line.")] = None,
    split: Annotated[
        str | None, typer.Option(help="Only tasks of this split; needs --source.")
    ] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Count the stored tasks by task set and split; with --source, list those of one set."""
    from dataclasses import asdict

    from infra.db.tasks.tasks import known_source, list_splits, summaries
    from mainspring.errors import UsageError

    if source is None and split is not None:
        raise UsageError("--split lists tasks of one source", remedy="give --source as well")

    async def read(db: Any) -> Any:
        if source is None:
            return await list_splits(db)
        await known_source(db, source, split)
        return await summaries(db, source, split)

    rows = [asdict(row) for row in with_database(home, read)]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    from cli.tables import Screen, Table

    columns = ("source", "split", "tasks", "with an image")
    if source is not None:
        columns = ("id", "split", "image", "judge", "tests")
    table = Table(*columns)
    for row in rows:
        if image := row.get("image"):
            row["image"] = image if len(image) <= IMAGE_CHARS else f"..{image[2 - IMAGE_CHARS :]}"
        table.add_row(*("-" if value is None else str(value) for value in row.values()))
    Screen().print(table)


@app.command()
def images(
    source: Annotated[str | None, typer.Option(help="Only images of this task set.")] = None,
    split: Annotated[str | None, typer.Option(help="Only images of this split.")] = None,
    first: Annotated[
        int | None,
        typer.Option(min=1, help="Number of tasks per split, from the start (default: all)."),
    ] = None,
    pull: Annotated[bool, typer.Option("--pull", help="Pull the missing images.")] = False,
    mirror: Annotated[
        list[str] | None,
        typer.Option(help="Mirror to pull from first, e.g. mirror.example/hub. Repeatable."),
    ] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """List the Docker images of the stored tasks, and which of them are on this machine.

    With --pull, an image that fails does not stop the others; repeat the command to pull the
    missing ones. Without --mirror, the mirrors of MAINSPRING_IMAGE_MIRRORS are used.
    """
    import asyncio
    from dataclasses import asdict

    from cli.operations.machine.task_images import open_store, pull_missing, survey
    from infra.db.tasks.tasks import known_source, list_images
    from infra.sandbox.containers.image_names import parse_mirrors
    from mainspring.config.settings import load_settings
    from mainspring.errors import WorkFailed

    settings = load_settings(home)
    mirrors = parse_mirrors(mirror or settings.image_mirrors)

    async def read(db: Any) -> Any:
        if source is not None:
            await known_source(db, source, split)
        return await list_images(db, source=source, split=split, first=first)

    statuses: list[Any] = []
    if task_images := with_database(home, read):
        store = open_store(settings.home, mirrors)
        statuses = asyncio.run((pull_missing if pull else survey)(store, task_images))
    if as_json:
        typer.echo(json.dumps([asdict(status) for status in statuses]))
    else:
        _print(statuses)
    if failed := [status for status in statuses if status.error]:
        raise WorkFailed(
            f"{len(failed)} of {len(statuses)} images could not be pulled:\n"
            + "\n".join(f"  {status.error}" for status in failed),
            remedy="repeat the command to pull only those",
        )


def _print(statuses: list[Any]) -> None:
    from cli.tables import Screen, Table

    table = Table("image", "tasks", "here", "MB")
    for status in statuses:
        missing = status.num_bytes is None
        size = "" if missing else f"{status.num_bytes / 1e6:.0f}"
        table.add_row(status.image, str(status.num_tasks), "no" if missing else "yes", size)
    num_missing = sum(status.num_bytes is None for status in statuses)
    table.caption = f"{len(statuses)} images, {num_missing} missing"
    Screen().print(table)
