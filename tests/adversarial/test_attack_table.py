"""The page about the sandboxes' security says what was tried, all of it, and what came of it."""

from tests.adversarial.attack_table import NOT_RUN, TABLE, merged, read_rows
from tests.adversarial.attacks import ATTACKS

PAGE = """# Title

Before.

| tried | docker | bwrap |
|---|---|---|
| one | d1 | b1 |
| gone | d2 | b2 |

After, with a | bar.
"""


def test_every_attack_has_its_row_and_every_row_its_attack():
    rows = read_rows(TABLE.read_text())
    tried = [attack.tried for attack in ATTACKS]
    remedy = "run MAINSPRING_WRITE_TABLE=1 python -m pytest tests/adversarial, with Docker"
    assert list(rows) == tried and len(set(tried)) == len(tried), remedy
    assert [name for name, cells in rows.items() if NOT_RUN in cells.values()] == [], remedy
    assert all(cell.startswith("no escape") for cells in rows.values() for cell in cells.values())


def test_a_partial_run_changes_only_what_it_tried():
    page = merged(PAGE, ["new", "one"], {("one", "bwrap"): "b3", ("new", "bwrap"): "b4"})
    assert page == PAGE.replace("| one | d1 | b1 |", f"| new | {NOT_RUN} | b4 |\n| one | d1 | b3 |"
    ).replace("| gone | d2 | b2 |\n", "")  # fmt: skip
    assert merged(page, ["new", "one"], {}) == page
