"""The table of docs/sandbox-security.md: read, merged with what happened now, written again.

A run that tried some attacks or one backend changes those cells alone; the text around the table
stays. Rows stand in the order of ATTACKS; one whose attack is gone goes too.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from infra.sandbox.backends import BACKENDS

TABLE = Path(__file__).parents[2] / "docs" / "sandbox-security.md"
HEADER = f"| tried | {' | '.join(BACKENDS)} |"
NOT_RUN = "not run"

Rows = dict[str, dict[str, str]]
"""Cell by backend by attack."""


def read_rows(page: str) -> Rows:
    backends: list[str] = []
    rows: Rows = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            backends = []
        elif cells[0] == "tried":
            backends = cells[1:]
        elif backends and set(cells[0]) != {"-"}:
            rows[cells[0]] = dict(zip(backends, cells[1:], strict=True))
    return rows


def merged(page: str, attacks: Sequence[str], happened: Mapping[tuple[str, str], str]) -> str:
    """`page` with the table of `attacks`, where `happened` has (attack, backend) cells anew."""
    before = read_rows(page)
    lines = [HEADER, "|---" * (len(BACKENDS) + 1) + "|"]
    for tried in attacks:
        cells = [
            happened.get((tried, name), before.get(tried, {}).get(name, NOT_RUN))
            for name in BACKENDS
        ]
        lines.append(f"| {tried} | {' | '.join(cells)} |")
    above, _, rest = page.partition("| tried |")
    below = [line for line in rest.splitlines()[1:] if not line.startswith("|")]
    return "\n".join([*above.splitlines(), *lines, *below]) + "\n"
