"""A bar for long work, on standard error: what a command prints stays clean for other programs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """Call it with how many are done, and of how many."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    from cli.tables import Label, Screen
    from cli.terminal_text import drawn

    console = Screen(stderr=True)
    bar = Progress(
        *(Label("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with drawn(console), bar:
        task = bar.add_task(what, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)
