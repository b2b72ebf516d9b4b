"""A task of any kind, told apart by `kind`. One that was stored without it is of the kind "swe"."""

from collections.abc import Mapping
from typing import Any

from mainspring.tasks.own_task import OwnTask
from mainspring.tasks.swe_task import SWE, SweTask

AnyTask = SweTask | OwnTask


def read_task(fields: Mapping[str, Any]) -> AnyTask:
    """Raises pydantic's ValidationError."""
    kind = OwnTask if fields.get("kind", SWE) != SWE else SweTask
    return kind.model_validate(fields)
