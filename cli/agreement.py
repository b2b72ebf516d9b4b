"""Asking whether a stored campaign is to be changed, before it is. Imported by commands."""

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from cli.terminal_text import echo

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Make the changes without asking.")]


def agreement(yes: bool, *, quiet: bool = False) -> Callable[[Any], None]:
    """Shows changes and asks whether to make them; with `yes` it does not ask."""

    def agree(pending: Any) -> None:
        from mainspring.errors import UsageError

        if not quiet:
            print_changes(pending.record.id, pending.changes)
        if yes:
            return
        if not sys.stdin.isatty():
            raise UsageError(
                f"campaign {pending.record.id}: there is no terminal to ask whether to make "
                f"{counted(pending.changes)}",
                remedy="add --yes",
            )
        typer.confirm("Make these changes?", abort=True, err=True)

    return agree


def print_changes(campaign: str, changes: Sequence[Any]) -> None:
    """One line for each field, with the step that it counts from."""
    echo(f"campaign {campaign}:", err=True)
    for change in changes:
        echo(f"  {change.line}", err=True)


def counted(changes: Sequence[Any]) -> str:
    """How many changes, in words."""
    return "1 change" if len(changes) == 1 else f"{len(changes)} changes"
