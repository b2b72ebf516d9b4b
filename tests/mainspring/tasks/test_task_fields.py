"""The page about tasks has every field of a task, and what it says of them is so."""

import re
from pathlib import Path

from mainspring.tasks.swe_task import SweTask

PAGE = Path(__file__).parents[3] / "docs" / "tasks.md"


def test_the_page_has_every_field_of_a_task() -> None:
    section = PAGE.read_text().partition("### Your own rows")[2].partition("\n### ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, re.MULTILINE))
    assert set(rows) == set(SweTask.model_fields)
    needed = {name for name, word in rows.items() if word == "yes"}
    given_by_import = {"source", "split"}
    required = {name for name, field in SweTask.model_fields.items() if field.is_required()}
    assert needed == required - given_by_import
    assert "default 30" in section and SweTask.model_fields["test_timeout_s"].default == 30
