"""The table of every screen. Invariant: a word that is longer than its column is folded, never cut,
so that ids stay whole at 80 columns. Imported by commands when they print."""

from typing import Any, Literal

import rich.table


class Table(rich.table.Table):
    def add_column(
        self,
        header: Any = "",
        footer: Any = "",
        *,
        overflow: Literal["fold", "crop", "ellipsis", "ignore"] = "fold",
        **options: Any,
    ) -> None:
        super().add_column(header, footer, overflow=overflow, **options)
