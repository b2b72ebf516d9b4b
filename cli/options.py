"""Options that several commands take, and how commands reach what they need.

Imported by the commands beside this file.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from cli.terminal_text import echo

T = TypeVar("T")

Home = Annotated[Path | None, typer.Option(help="State folder (default .mainspring).")]
Json = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")]
Workers = Annotated[
    bool, typer.Option(help="Start a local rollout worker and sandbox node for this run.")
]


def hint(text: str) -> None:
    """What to do next, beside what the command prints for other programs."""
    echo(f"next: {text}", dim=True, err=True)


def with_services(home: Path | None, call: Callable[[Any], Awaitable[T]]) -> T:
    """Call with `cli.operations.services.Services`: settings, database and Temporal."""
    import asyncio

    from cli.operations import services

    return asyncio.run(services.with_services(home, call))


def with_database(home: Path | None, call: Callable[[Any], Awaitable[T]]) -> T:
    import asyncio

    from infra.db.connect import with_database as run

    return asyncio.run(run(home, call))
