"""Ids stay whole on narrow screens."""

import io

from rich.console import Console

from cli.tables import Table

NAME = "registry.example/a-team/swe.eval.x86_64.getmoto_s_moto-7365:latest"


def test_a_long_name_is_folded_and_not_cut() -> None:
    table = Table("image", "tasks", box=None, pad_edge=False)
    table.add_row(NAME, "1")
    screen = io.StringIO()
    Console(file=screen, width=40).print(table)
    lines = screen.getvalue().splitlines()
    assert max(map(len, lines)) <= 40
    assert "".join(line.split()[0] for line in lines[1:]) == NAME
