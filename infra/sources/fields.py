"""Reading the fields of a row that others wrote: typed, or a RowError that names the field. Pure.

Imported by the modules beside this file that turn rows into tasks.
"""

import ast
import io
import json
import re
import tokenize
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from infra.sources.git_patch import whole_patch
from infra.sources.patch_files import PatchFiles
from infra.sources.protocol import ImportOptions, RowError, RowProblem
from infra.sources.soundness import check_sound
from mainspring.tasks.any_task import AnyTask, read_task
from mainspring.tasks.swe_task import SweTask

Row = Mapping[str, Any]
INSTANCE_ID = "instance_id"
"""In a task's metadata: its id in the data set, where it is stored under another one."""
_PATCHES = ("base_patch", "test_patch", "gold_patch")
_NAMES = {
    "id": re.compile(r"\w[\w.:@+~=,-]{0,199}"),
    "source": re.compile(r"\w[\w.:@+~=,/ -]{0,199}"),
    "split": re.compile(r"\w[\w.:@+~=,/ -]{0,199}"),
}
"""They are keys in the store, and names of folders and lines where tasks are exported."""


def text(row: Row, field: str) -> str:
    """Raises RowError when it is missing, empty or no text."""
    value = row.get(field)
    if value is None or value == "":
        raise RowError(RowProblem.MISSING_FIELD, f"{field} is missing or empty")
    if not isinstance(value, str):
        raise RowError(RowProblem.WRONG_TYPE, f"{field} must be text, not {_kind(value)}")
    return value


def text_or(row: Row, field: str, default: str) -> str:
    return default if row.get(field) in (None, "") else text(row, field)


def patch(row: Row, field: str) -> tuple[str, PatchFiles]:
    """As git reads it, and its files. Raises RowError."""
    value = text(row, field)
    try:
        return whole_patch(value)
    except ValueError as error:
        raise RowError(RowProblem.NOT_A_PATCH, f"{field} is not a git patch: {error}") from None


def names(row: Row, field: str) -> tuple[str, ...]:
    """A list of texts, or the same as text of JSON or Python. Raises RowError when it is missing or
    none of these."""
    raw = row.get(field)
    if raw is None or raw == "":
        raise RowError(RowProblem.MISSING_FIELD, f"{field} is missing or empty")
    value = from_json(raw)
    if value is None and isinstance(raw, str):
        value = _python_list(raw)
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise RowError(
            RowProblem.WRONG_TYPE,
            f"{field} must be a list of names, or one as text of JSON or Python",
        )
    return tuple(value)


def _python_list(source: str) -> list[str] | None:
    """List of texts from what `str` makes of one, as tables of comma-separated values have it; None
    for all else: also for `['a' 'b']`, which is numpy's and which Python reads as one text."""
    try:
        tree = ast.parse(source.strip(), mode="eval").body
        tokens = list(tokenize.generate_tokens(io.StringIO(source.strip()).readline))
        value = ast.literal_eval(tree)
    except (ValueError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError):
        return None
    num_texts = sum(token.type == tokenize.STRING for token in tokens)
    return value if isinstance(value, list) and len(value) == num_texts else None


def from_json(value: object) -> object:
    """Value that hubs keep as JSON text and files as it is; None when it is text and not JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def build_task(fields: Row, options: ImportOptions) -> AnyTask:
    """With what `options` add. Raises RowError naming the fields that do not fit."""
    fields = dict(fields)
    own_hosts = fields.get("allow_hosts", ())
    if options.allow_hosts and isinstance(own_hosts, list | tuple):
        fields["allow_hosts"] = list(dict.fromkeys([*own_hosts, *options.allow_hosts]))
    if options.id_prefix and isinstance(metadata := fields.get("metadata", {}), dict):
        own_id = text(fields, "id")
        # An exported row may have the prefix already.
        if own_id != f"{options.id_prefix}{metadata.get(INSTANCE_ID)}":
            fields["metadata"] = {INSTANCE_ID: own_id, **metadata}
            fields["id"] = options.id_prefix + own_id
    for field, shape in _NAMES.items():
        name = text(fields, field)
        if not shape.fullmatch(name):
            raise RowError(RowProblem.WRONG_TYPE, f"{field} {name[:60]!r} cannot be a name")
    for field in _PATCHES:
        if isinstance(value := fields.get(field), str) and value.strip():
            fields[field] = patch(fields, field)[0]
    try:
        task = read_task(fields)
    except ValidationError as error:
        first, *more = error.errors(include_url=False)
        place = [str(part)[:80] for part in first["loc"]]
        place = [*place[:4], "..."] if len(place) > 6 else place
        parts = [".".join(place), first["msg"].removeprefix("Value error, ")]
        also = f" (and {len(more)} more)" if more else ""
        missing = first["type"] == "missing"
        raise RowError(
            RowProblem.MISSING_FIELD if missing else RowProblem.WRONG_TYPE,
            ": ".join(filter(None, parts)) + also,
        ) from None
    if isinstance(task, SweTask):
        check_sound(task)
    return task


def _kind(value: object) -> str:
    kinds = {bool: "a truth value", int: "a number", float: "a number", list: "a list"}
    return kinds.get(type(value), "an object" if isinstance(value, Mapping) else "something else")
