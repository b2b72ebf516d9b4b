"""The screen and the table of every command.

Invariants: text is text, never rich's markup or an emoji's name, so a test's id or the arguments in
an error stand as they are; nothing in it steers the terminal. A word that is longer than its column
is folded, never cut, so that ids stay whole at 80 columns. Imported by commands when they print.
"""

from collections.abc import Iterable
from typing import IO, Any, Literal

import rich.console
import rich.table
from rich.progress import ProgressColumn, Task
from rich.segment import Segment
from rich.text import Text

from cli.terminal_text import panel_on, plain


class Screen(rich.console.Console):
    """Takes styles by `style=`, or as Text."""

    def __init__(
        self, *, stderr: bool = False, file: IO[str] | None = None, width: int | None = None
    ) -> None:
        super().__init__(
            stderr=stderr, file=file, width=width, markup=False, emoji=False, highlight=False
        )

    def print(self, *objects: Any, **options: Any) -> None:
        panel = panel_on(self.is_terminal)
        if panel is None or panel is self:
            super().print(*objects, **options)
        else:
            panel.print(*objects, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        # Before it is measured: what is removed takes no room.
        return super().render_str(plain(text), **options)

    def render(
        self, renderable: Any, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            # Text objects come here unseen; a segment of rich's own control codes is kept.
            if segment.control or (text := plain(segment.text)) == segment.text:
                yield segment
            else:
                yield Segment(text, segment.style)

    def status(self, status: Any, **options: Any) -> Any:
        # A spinner reads its text as markup, whatever the console does.
        return super().status(as_text(status), **options)


class Table(rich.table.Table):
    """Plain: columns without lines between, for people and for `cut`."""

    def __init__(self, *headers: Any, **options: Any) -> None:
        plain_style = {"box": None, "pad_edge": False, "caption_justify": "left"}
        super().__init__(*headers, **plain_style | options)

    def add_column(
        self,
        header: Any = "",
        footer: Any = "",
        *,
        overflow: Literal["fold", "crop", "ellipsis", "ignore"] = "fold",
        **options: Any,
    ) -> None:
        super().add_column(header, footer, overflow=overflow, **options)

    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(*map(as_text, cells), **options)


def as_text(cell: Any) -> Any:
    """A string as Text, whatever console prints it; another renderable as it is."""
    return Text(plain(cell)) if isinstance(cell, str) else cell


class Label(ProgressColumn):
    """A column of a progress bar, as "{task.description}"."""

    def __init__(self, template: str) -> None:
        super().__init__()
        self._template = template

    def render(self, task: Task) -> Text:
        return Text(plain(self._template.format(task=task)))
