"""The example source is imported by its path; what is no source is refused by name."""

from pathlib import Path

import pytest

from infra.db.database import Database
from infra.db.tasks import tasks
from infra.sources.importing import import_rows
from infra.sources.protocol import ImportOptions
from infra.sources.resolve import open_source
from mainspring.errors import UsageError
from mainspring.ids import TaskId

EXAMPLE = Path(__file__).parents[3] / "examples" / "own-source"
NAMED = "csv_source:CsvSource"
HERE = __name__


class NoRows:
    def __init__(self, options: ImportOptions) -> None: ...


class TakesNothing:
    def __init__(self) -> None: ...

    def rows(self) -> None: ...


class GivesWords(NoRows):
    def rows(self):
        yield "a task"


class Fails(NoRows):
    def rows(self):
        raise KeyError("column")


not_a_class = 3


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))


@pytest.mark.usefixtures("example")
async def test_the_example_source_is_imported_twice_as_once(db: Database) -> None:
    options = ImportOptions(name="mine", split="dev", id_prefix="x-")
    for num_new in (3, 0):
        rows = open_source(NAMED, options).rows()
        report = await import_rows(db, rows, lambda _: None)
        assert (report.num_new, report.num_new + report.num_same, report.failed) == (num_new, 3, [])
    stored = await tasks.get_task(db, TaskId("x-add"))
    assert (stored.source, stored.split) == ("mine", "dev")
    assert stored.files["numbers_.py"].startswith("def add(a, b):\n")


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("nowhere_at_all:Source", "cannot be imported: ModuleNotFoundError"),
        (f"{HERE}:Absent", "cannot be imported: AttributeError"),
        (f"{HERE}:not_a_class", "is a int, expected a class"),
        (f"{HERE}:TakesNothing", "cannot be made: TypeError"),
        (f"{HERE}:NoRows", "lacks rows"),
        (f"{HERE}:GivesWords", "gave a str, expected a SourceRow"),
        (f"{HERE}:Fails", "failed: KeyError: 'column'"),
    ],
)
def test_what_is_no_source_is_refused(named: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        list(open_source(named, ImportOptions()).rows())
    assert named in refused.value.message or repr(named) in refused.value.message
    assert refused.value.remedy
