"""`mainspring tasks new`: a task of one's own from a git repository."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cli.terminal_text import echo

NUM_SHOWN = 20
"""Files named that were left out; more would hide what comes next."""


def new(
    repository: Annotated[Path, typer.Argument(help="Folder of a git repository.")],
    tests: Annotated[
        list[str],
        typer.Option(help="File or folder of hidden tests in the repository. Repeatable."),
    ],
    test_command: Annotated[
        str, typer.Option(help="Bash command that runs the tests; exit code 0 means resolved.")
    ],
    out: Annotated[Path, typer.Option(help="JSONL file to append the row to.")],
    gold: Annotated[
        Path | None, typer.Option(help="Patch with the fix; the tests are in the work tree.")
    ] = None,
    base: Annotated[
        str,
        typer.Option(help="Commit before the fix. Default: the fix's parent, or HEAD with --gold."),
    ] = "",
    fix: Annotated[str, typer.Option(help="Commit with the fix and its tests.")] = "",
    task_id: Annotated[
        str, typer.Option("--id", help="Id of the task. Default: repository and commit.")
    ] = "",
    issue: Annotated[
        Path | None, typer.Option(help="File with the issue. Default: the fix's message.")
    ] = None,
    split: Annotated[str, typer.Option(help="Split of the task.")] = "train",
    image: Annotated[
        str | None, typer.Option(help="Docker image with the repository at --workdir.")
    ] = None,
    workdir: Annotated[
        str, typer.Option(help="Folder of the repository in the sandbox.")
    ] = "/testbed",
    test_timeout: Annotated[
        float, typer.Option(min=1.0, help="Time limit of the tests in seconds.")
    ] = 60.0,
    leave_out: Annotated[
        list[str] | None,
        typer.Option(
            help="Files of the repository to leave out, as a pattern such as 'docs/*'. Repeatable."
        ),
    ] = None,
) -> None:
    """Make a task from a git repository, as a row that `tasks import` takes.

    With --fix, the changes between two commits are split: changes to tests become the hidden
    tests, the rest becomes the fix. With --gold, the fix is a patch, and the agent does not
    see the files named by --tests.

    A row without an image holds text. Binary files, links and submodules are left out and
    named, unless the fix or the tests need them.
    """
    from infra.sources.from_repository import RepositoryTask, make_row

    task = make_row(
        repository,
        RepositoryTask(
            tests=tuple(tests),
            test_command=test_command,
            gold=None if gold is None else _read(gold),
            base=base,
            fix=fix,
            id=task_id,
            issue="" if issue is None else _read(issue),
            split=split,
            image=image,
            workdir=workdir,
            test_timeout_s=test_timeout,
            leave_out=tuple(leave_out or ()),
        ),
    )
    _append(out, task.row)
    if task.left_out:
        echo(f"left out {len(task.left_out)} of the repository's files:")
        for named in _first(task.left_out):
            echo(f"  {named}")
    echo(f"task {task.row['id']} is in {out}; next:")
    echo(f"  mainspring tasks import {out} --name {out.stem}")
    echo(f"  mainspring tasks verify --source {out.stem} --split {split}")


def _first(left_out: Sequence[str]) -> list[str]:
    more = len(left_out) - NUM_SHOWN
    return [*left_out[:NUM_SHOWN], *([f"and {more} more"] if more > 0 else [])]


def _read(path: Path) -> str:
    from mainspring.errors import UsageError

    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text") from None


def _append(out: Path, row: dict[str, object]) -> None:
    from mainspring.errors import UsageError

    if out.suffix != ".jsonl":
        raise UsageError(f"{out} is not a file of rows", remedy="let its name end in .jsonl")
    try:
        lines = out.read_text().split("\n") if out.exists() else []
        if any(json.loads(line).get("id") == row["id"] for line in lines if line.strip()):
            raise UsageError(
                f"{out} has a task {row['id']} already", remedy="give the new one another --id"
            )
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"{out}: {error}", remedy="choose another file for the row") from None
