"""A SWE-bench task repository: `sweb.yaml`, and a folder for each task below `tasks/`.

Like the official tool it leaves out tasks in splits that the repository does not publish, unless
they are asked for by --split. Imported by `resolve`.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from infra.sources.protocol import ImportOptions, Place, RowError, RowProblem, SourceRow
from infra.sources.rows import read_row
from infra.sources.task_folder import read_text
from mainspring.errors import UsageError

CONFIG = "sweb.yaml"
_FILES = {
    "patch": "gold.patch",
    "test_patch": "test.patch",
    "eval_script": "eval.sh",
    "problem_statement": "problem_statement.md",
}


class SwebenchRepoSource:
    def __init__(self, path: Path, options: ImportOptions) -> None:
        self._path = path
        self._options = options

    def rows(self) -> Iterator[SourceRow]:
        config = self._config()
        published = config.get("splits") or ["test"]
        folders = sorted(path.parent for path in self._path.glob("tasks/*/task.yaml"))
        if not folders:
            raise UsageError(f"{self._path} has no tasks/*/task.yaml", remedy="check the folder")
        for folder in folders:
            place = Place(str(folder))
            try:
                raw = _read(folder)
            except RowError as error:
                yield SourceRow(place, folder.name, error)
                continue
            if raw.get("split") in published or self._options.split is not None:
                row = read_row(raw, place, self._options, source=self._path.resolve().name)
                if row is not None:
                    yield row

    def _config(self) -> dict[str, Any]:
        path = self._path / CONFIG
        try:
            config = yaml.safe_load(path.read_text())
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
            raise UsageError(f"{path} cannot be read: {error}") from None
        if not isinstance(config, dict) or not isinstance(config.get("splits") or [], list):
            raise UsageError(f"{path} is not the description of a SWE-bench task repository")
        return config


def _read(folder: Path) -> dict[str, Any]:
    """The row that the official tool would publish for it. Raises RowError."""
    try:
        row = yaml.safe_load(read_text(folder / "task.yaml"))
        tests = json.loads(read_text(folder / "tests.json"))
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise RowError(RowProblem.WRONG_TYPE, f"task.yaml or tests.json: {error}") from None
    if not isinstance(row, dict) or not isinstance(tests, dict):
        raise RowError(RowProblem.WRONG_TYPE, "task.yaml and tests.json must be objects")
    if any(path.is_file() for path in folder.glob("test_assets/**/*")):
        raise RowError(RowProblem.UNSUPPORTED, "its tests need binary files (test_assets)")
    return row | {field: read_text(folder / name) for field, name in _FILES.items()} | tests
