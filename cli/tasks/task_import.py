"""`mainspring tasks import` and `mainspring tasks export`: task sets in, and out again as files."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.options import Home, Json, hint
from cli.terminal_text import echo

NUM_SHOWN = 20
"""Failed rows printed; more would hide the counts. --json has all."""


def import_(
    source: Annotated[
        str,
        typer.Argument(
            help="A .jsonl, .json or .parquet file, a SWE-bench task repository, a Harbor task "
            "or a folder of them, a data set of the Hugging Face hub, a campaign file that names "
            "services as environments, or a task source of your own as "
            '"package.module:Class".'
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(help="Name of the task set. Default: from the rows, else from the file."),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Import only this split. Rows without a split get this one (default: train)."
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Number of rows to import, from the start (default: all)."),
    ] = None,
    filter_: Annotated[
        str | None,
        typer.Option(
            "--filter",
            help="Import only tasks whose id contains a match of this regular expression.",
        ),
    ] = None,
    image_template: Annotated[
        str | None,
        typer.Option(
            help="Name of each task's image, e.g. hub.example/{id}. {id_1776} and {id_s} are "
            'the id with "__" replaced by "_1776_" or "_s_".'
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="HOST:PORT that the sandboxes of all tasks may reach. Repeatable."),
    ] = None,
    id_prefix: Annotated[
        str, typer.Option(help="Prefix for task ids; use it when two sets contain the same tasks.")
    ] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace stored tasks that no campaign has used.")
    ] = False,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Import tasks from a file, a folder, a service or a Hugging Face data set. Safe to repeat.

    Invalid rows are reported and skipped; valid rows are imported. A parquet file in verl's
    columns with an invalid row is refused as a whole.
    """
    import asyncio

    from infra.db.connect import with_database
    from infra.sources.importing import import_rows, selected
    from infra.sources.protocol import ImportOptions
    from infra.sources.resolve import open_source
    from mainspring.errors import WorkFailed

    options = ImportOptions(name, split, image_template, tuple(allow_host or ()), id_prefix)
    opened = open_source(source, options)
    rows = selected(opened.rows(), _compiled(filter_), limit)

    async def run(db: Any) -> Any:
        with _progress(source, limit) as show:
            return await import_rows(db, rows, show, replace=replace)

    report = asyncio.run(with_database(home, run))
    echo(json.dumps(_as_json(report)) if as_json else _as_text(report))
    if report.with_tests and not as_json:
        name_, split_ = min(report.with_tests)
        hint(f"`mainspring tasks verify --source {name_} --split {split_}`")
    if report.failed:
        raise WorkFailed(
            f"{len(report.failed)} of {report.num_rows} rows of {source} were not imported",
            remedy="correct the rows and repeat the command; imported tasks are kept",
        )
    if report.num_rows == 0:
        raise _nothing_selected(source, split, filter_)


def remove(
    source: Annotated[str, typer.Option(help="Task set to remove from (`tasks list` shows them).")],
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Ids of the tasks to remove (default: all)."),
    ] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Remove stored tasks, or a whole task set.

    Tasks that a campaign has used cannot be removed. If one task cannot be removed, none is.
    """
    import asyncio

    from infra.db.connect import with_database
    from infra.db.tasks import task_removal
    from infra.db.tasks.tasks import known_source
    from mainspring.ids import TaskId

    async def run(db: Any) -> int:
        await known_source(db, source)
        return await task_removal.remove(db, source, [TaskId(id) for id in ids or ()])

    num_removed = asyncio.run(with_database(home, run))
    if as_json:
        typer.echo(json.dumps({"source": source, "num_removed": num_removed}))
    else:
        echo(f"{num_removed} {'task' if num_removed == 1 else 'tasks'} of {source} removed")


def export(
    directory: Annotated[
        Path, typer.Argument(help="Folder for the files; created if it is missing.")
    ],
    source: Annotated[str, typer.Option(help="Task set to export (`tasks list` shows them).")],
    split: Annotated[str | None, typer.Option(help="Export only this split.")] = None,
    mirror: Annotated[
        str | None, typer.Option(help="Mirror to name the images after, e.g. mirror.example/hub.")
    ] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Write instance_ids.txt, docker_images.txt and eval.jsonl, which can be imported again."""
    import asyncio

    from infra.db.connect import with_database
    from infra.db.tasks.tasks import get_tasks, known_source
    from infra.sandbox.containers.image_names import parse_mirrors
    from infra.sources.exporting import export_tasks
    from mainspring.errors import UsageError

    mirrors = parse_mirrors(mirror or "")
    if len(mirrors) > 1:
        raise UsageError("images are named after one mirror only", remedy="give one --mirror")

    async def read(db: Any) -> Any:
        await known_source(db, source, split)
        return await get_tasks(db, source, split)

    tasks = asyncio.run(with_database(home, read))
    try:
        written = export_tasks(tasks, directory, mirrors[0] if mirrors else None)
    except OSError as error:
        raise UsageError(f"{error.filename or directory}: {error.strerror}") from None
    if as_json:
        typer.echo(json.dumps({str(directory / name): num for name, num in written.items()}))
    else:
        for name, num_lines in written.items():
            echo(f"{directory / name}  {num_lines} lines")


def _nothing_selected(source: str, split: str | None, pattern: str | None) -> Exception:
    from mainspring.errors import UsageError

    filters = [f"of split {split!r}"] if split else []
    filters += [f"with an id that --filter {pattern!r} matches"] if pattern else []
    if not filters:
        return UsageError(f"{source} has no rows", remedy="check that it is the right file")
    chosen = ["--split"] * bool(split) + ["--filter"] * bool(pattern)
    return UsageError(
        f"{source} has no row {' and '.join(filters)}; nothing was imported",
        remedy=f"leave out {' and '.join(chosen)} to import all rows",
    )


def _compiled(pattern: str | None) -> Any:
    import re

    from mainspring.errors import UsageError

    try:
        return None if pattern is None else re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--filter {pattern!r} is not a regular expression: {error}") from None


def _progress(source: str, limit: int | None) -> Any:
    """Show progress; gives the function that takes the report so far."""
    from collections.abc import Iterator
    from contextlib import contextmanager

    from rich.progress import BarColumn, Progress, TimeElapsedColumn

    from cli.tables import Label, Screen

    @contextmanager
    def showing() -> Iterator[Any]:
        columns = (Label("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Screen(stderr=True), transient=True) as progress:
            # A source does not know how long it is before it has been read.
            bar = progress.add_task("reading", total=limit)

            def show(report: Any) -> None:
                text = f"{report.num_rows} rows, {report.num_new} new, {len(report.failed)} failed"
                progress.update(bar, completed=report.num_rows, description=text)

            yield show

    return showing()


def _as_text(report: Any) -> str:
    lines = [str(failed) for failed in report.failed[:NUM_SHOWN]]
    if len(report.failed) > NUM_SHOWN:
        lines.append(f"... and {len(report.failed) - NUM_SHOWN} more failed; --json names them all")
    lines += [
        f"{source}, split {split}: {num_tasks} tasks"
        for (source, split), num_tasks in sorted(report.splits.items())
    ]
    replaced = f"{report.num_replaced} replaced, " if report.num_replaced else ""
    lines.append(
        f"{report.num_new} new, {replaced}{report.num_same} same, {len(report.failed)} failed"
    )
    return "\n".join(lines)


def _as_json(report: Any) -> dict[str, Any]:
    return {
        "num_new": report.num_new,
        "num_same": report.num_same,
        "num_replaced": report.num_replaced,
        "num_failed": len(report.failed),
        "splits": [
            {"source": source, "split": split, "num_tasks": num_tasks}
            for (source, split), num_tasks in sorted(report.splits.items())
        ],
        "failed": [
            {
                "file": failed.place.file,
                "line": failed.place.number,
                "id": failed.id,
                "problem": str(failed.error.problem),
                "reason": failed.error.message,
                "remedy": failed.error.remedy,
            }
            for failed in report.failed
        ],
    }
