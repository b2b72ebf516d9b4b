"""Rows that carry a task's row inside: this project's seeds and exports, and NeMo-Gym's inputs.

A `{"text", "metadata": {"instance", "data_source"}}` line is the row in its `instance`. An input of
a NeMo-Gym server has the request for the policy beside what is judged; where that is a whole row of
a data set (`instance_dict`), it is that row, in the image that the input names. Pure. Imported by
`rows`.
"""

from collections.abc import Iterator, Mapping

from infra.sources.fields import Row, from_json, text_or
from infra.sources.protocol import RowError, RowProblem

REQUEST = "responses_create_params"
"""Field that each input of NeMo-Gym has."""
_INSTANCES = ("instance_dict", "instance")
_OWN = ("issue", "FAIL_TO_PASS", "expected_output_json", "test_command")
"""A row that has one of them is a task itself, whatever it carries."""


def unwrapped(raw: Row) -> tuple[Row, str]:
    """The row, and the data set that it names as its origin. Raises RowError."""
    metadata = raw.get("metadata")
    if "text" in raw and isinstance(metadata, Mapping) and "instance" in metadata:
        row = {"problem_statement": raw["text"], **_read(metadata["instance"], "metadata.instance")}
        return row, text_or(metadata, "data_source", "")
    if any(raw.get(field) not in (None, "", []) for field in _OWN):
        return raw, ""
    for where, place in _places(raw):
        for field in _INSTANCES:
            if place.get(field) not in (None, "", {}):
                return _image(raw) | dict(_read(place[field], f"{where}{field}")), ""
    if REQUEST in raw:
        raise RowError(
            RowProblem.NO_SPEC,
            "it looks like a NeMo-Gym input without a task's row: what judges it is a program of "
            "NeMo-Gym's server",
            remedy="only inputs that hold a row of a data set (instance_dict) can be imported",
        )
    return raw, ""


def _places(raw: Row) -> Iterator[tuple[str, Row]]:
    """Where NeMo-Gym's servers keep it, and what each place is called."""
    yield "", raw
    for field in ("verifier_metadata", "metadata"):
        if isinstance(place := from_json(raw.get(field)), Mapping):
            yield f"{field}.", place
    yield f"{REQUEST}.metadata.", _metadata(raw)


def _metadata(raw: Row) -> Row:
    request = raw.get(REQUEST)
    metadata = request.get("metadata") if isinstance(request, Mapping) else None
    return metadata if isinstance(metadata, Mapping) else {}


def _image(raw: Row) -> dict[str, object]:
    image = _metadata(raw).get("docker_image")
    return {"docker_image": image} if image else {}


def _read(raw: object, where: str) -> Row:
    row = from_json(raw)
    if not isinstance(row, Mapping):
        raise RowError(RowProblem.WRONG_TYPE, f"{where} must be an object, or one as JSON text")
    return row
