"""Make tables of what clients did when something was killed, from what `test_client_kills` printed.

    python -m pytest -m long -s tests/gateway/test_client_kills.py | tee kills.txt
    python -m tests.gateway.client_table kills.txt [MORE...]

A line of a later file stands in the place of the same client and kill in an earlier one. Kills that
were not tried have a dash, as have those of a gateway that came after its answer had been sent: a
client whose gateway dies cannot have waited.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.chaos.fault_roles import Role
from tests.gateway.kill_plan import NAMES, OWN, SHARED, SHARES, Phase

Cells = dict[tuple[str, str, str], dict[str, Any]]
"""By client, what was killed, and the share of calls."""
BEGIN = '{"client"'
GATEWAY = {f"gateway, {phase}": str(phase) for phase in Phase}
NAMED = {Role.PROGRAM: "client", Role.ROLLOUT: "rollout worker"}
OTHERS = {str(role): NAMED.get(role, str(role)) for role in (*OWN, *SHARED)}
REPLAYS = ("sandbox", "program")


def read(files: Iterable[Path]) -> Cells:
    cells: Cells = {}
    for file in files:
        for line in file.read_text(errors="replace").splitlines():
            _, mark, rest = line.partition(BEGIN)  # pytest may have written before it
            cell = json.JSONDecoder().raw_decode(mark + rest)[0] if mark else {}
            is_late = cell.get("killed") in GATEWAY and cell["how"] == "waited" and cell["survived"]
            if "killed" in cell and not is_late:
                cells[cell["client"], cell["killed"], cell["at"]] = cell
    return cells


def told(pair: list[dict[str, Any] | None]) -> str:
    """What a client did at both shares of its calls; with the seconds until it asked again."""
    cells = [cell for cell in pair if cell is not None]
    words: dict[str, list[float]] = {}
    for cell in cells:
        away = words.setdefault(cell["how"] if cell["survived"] else "**lost**", [])
        if cell["survived"] and cell["away_s"] is not None:
            away.append(round(cell["away_s"]))
    parts = []
    for word, away in words.items():
        spread = sorted({min(away), max(away)}) if away else []
        seconds = " to ".join(f"{each:.0f}" for each in spread)
        parts.append(f"{word} {seconds} s" if seconds else word)
    return "; ".join(parts) or "-"


def kills(cells: Cells, columns: dict[str, str]) -> list[str]:
    """One table: both shares in a cell, one if they are alike."""
    lines = [f"| | {' | '.join(columns.values())} |", "|---" * (len(columns) + 1) + "|"]
    for client in NAMES:
        found = [[cells.get((client, killed, at)) for at in SHARES] for killed in columns]
        if any(any(pair) for pair in found):
            lines.append(f"| {client} | {' | '.join(map(told, found))} |")
    return lines


def replays(cells: Cells) -> list[str]:
    lines = [
        "| | killed | at | calls before | from the store | reply time saved | back after |",
        "|---|---|---|---|---|---|---|",
    ]
    for client in NAMES:
        for killed in REPLAYS:
            for at in SHARES:
                cell = cells.get((client, killed, at))
                if cell is None or cell["how"] != "replayed":
                    continue
                share = 100 * cell["num_from_store"] / max(1, cell["num_before"])
                back = "-" if cell["away_s"] is None else f"{cell['away_s']:.0f} s"
                lines.append(
                    f"| {client} | {OTHERS[killed]} | {at} % | {cell['num_before']} | "
                    f"{cell['num_from_store']} ({share:.0f} %) | {cell['saved_s']:.0f} s | {back} |"
                )
    return lines


def main(files: list[Path]) -> None:
    cells = read(files)
    for table in (kills(cells, GATEWAY), kills(cells, OTHERS), replays(cells)):
        print("\n".join(table), end="\n\n")
    for (client, killed, at), cell in cells.items():
        for each in dict.fromkeys(cell["amiss"]):
            print(f"{client}, {killed}, {at} %: {each}")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
