"""Which image a row's task runs in. Pure.

A template given by the person who imports comes first, then what the row names, then the rule of
the data set the row is from. Imported by `rows` and `harbor`.
"""

from collections.abc import Mapping
from enum import StrEnum
from string import Formatter
from typing import Any

from infra.sandbox.containers.image_names import ImageName
from infra.sandbox.protocol import ImageUnknown
from infra.sources.protocol import RowError, RowProblem
from mainspring.errors import UsageError

IMAGE_FIELDS = ("image_name", "image", "docker_image")
"""Columns in which data sets name a row's image; the first one that is filled counts."""
_OLD_SWE_SMITH = ("jyangballin/swesmith.", "docker.io/jyangballin/swesmith.")
"""Images that older rows of SWE-smith name. The data set's harness takes no name from a row: it
runs the rule's image."""
_PLACEHOLDERS = ("id", "id_1776", "id_s")
_REMEDY = "give the image in the row, or --image-template"


class ImageFamily(StrEnum):
    """Data sets whose images are named by a rule."""

    SWE_BENCH = "swe-bench"
    """docker.io/swebench/sweb.eval.x86_64.<id>, with `_1776_` for `__`."""
    SWE_GYM = "swe-gym"
    """docker.io/xingyaoww/sweb.eval.x86_64.<id>, with `_s_` for `__`."""
    SWE_SMITH = "swe-smith"
    """docker.io/swebench/swesmith.x86_64.<repository>, with `_1776_` for `__`."""


_RULES = {
    ImageFamily.SWE_BENCH: "docker.io/swebench/sweb.eval.x86_64.{id_1776}:latest",
    ImageFamily.SWE_GYM: "docker.io/xingyaoww/sweb.eval.x86_64.{id_s}:latest",
    ImageFamily.SWE_SMITH: "docker.io/swebench/swesmith.x86_64.{id_1776}:latest",
}


def check_template(template: str) -> None:
    """Raises UsageError: `{id}` is the task's id in lower case, `{id_1776}` and `{id_s}` the same
    with that in the place of `__`."""
    try:
        fields = [field for _, field, *_ in Formatter().parse(template) if field is not None]
    except ValueError as error:
        raise UsageError(f"image template {template!r}: {error}") from None
    if not fields or not set(fields) <= set(_PLACEHOLDERS):
        raise UsageError(
            f"image template {template!r} must have one of {{{'}, {'.join(_PLACEHOLDERS)}}}",
            remedy="as in registry.example/swe/{id}:latest",
        )
    _filled(template, "check__it-1")


def image_for(
    row: Mapping[str, Any], task_id: str, family: ImageFamily | None, template: str | None
) -> str:
    """Raises RowError."""
    if template is not None:
        return _filled(template, task_id)
    for field in IMAGE_FIELDS:
        if name := row.get(field):
            if family is ImageFamily.SWE_SMITH and str(name).startswith(_OLD_SWE_SMITH):
                continue
            if not isinstance(name, str):
                raise RowError(
                    RowProblem.WRONG_TYPE, f"{field} must be text, not {type(name).__name__}"
                )
            return _checked(name)
    if family is None:
        raise RowError(RowProblem.NO_IMAGE, "it names no image", remedy=_REMEDY)
    # SWE-smith has one for each repository, whatever the bug.
    of_repository = family is ImageFamily.SWE_SMITH
    image_id = str(row["repo"]).rpartition("/")[2] if of_repository else task_id
    return _filled(_RULES[family], image_id)


def _filled(template: str, task_id: str) -> str:
    lowered = task_id.lower()
    return _checked(
        template.format(
            id=lowered,
            id_1776=lowered.replace("__", "_1776_"),
            id_s=lowered.replace("__", "_s_"),
        )
    )


def _checked(image: str) -> str:
    try:
        ImageName.parse(image)
    except ImageUnknown as error:
        raise RowError(RowProblem.NO_IMAGE, error.message, remedy=error.remedy) from None
    return image
