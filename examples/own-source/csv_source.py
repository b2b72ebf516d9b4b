"""A task source of your own: each line of a CSV file is a small bug in one Python file."""

import csv
from collections.abc import Iterator
from pathlib import Path

from infra.sources.protocol import ImportOptions, Place, RowError, RowProblem, SourceRow
from mainspring.ids import TaskId
from mainspring.tasks.swe_task import SweTask

FILE = Path(__file__).with_name("bugs.csv")


class CsvSource:
    def __init__(self, options: ImportOptions) -> None:
        self._options = options

    def rows(self) -> Iterator[SourceRow]:
        with FILE.open(newline="") as file:
            for number, line in enumerate(csv.DictReader(file), 2):
                yield SourceRow(Place(FILE.name, number), line["id"], self._task(line))

    def _task(self, line: dict[str, str]) -> SweTask | RowError:
        if not line["test"]:
            return RowError(RowProblem.MISSING_FIELD, "its column test is empty")
        return SweTask(
            id=TaskId(self._options.id_prefix + line["id"]),
            source=self._options.name or "bugs",
            split=self._options.split or "train",
            issue=line["issue"],
            files={"numbers_.py": line["code"] + "\n"},
            tests={"hidden_test.py": f"from numbers_ import *\n{line['test']}\n"},
            test_command="python3 hidden_test.py",
        )
