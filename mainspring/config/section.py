"""The base of every section of a campaign file: unknown keys are refused, nothing changes later.

Invariants: a number is finite, and neither `true` nor text; `true` and `false` are no numbers or
text; each number has bounds at both ends, its own (`ge`, `gt`, `le`, `lt` of pydantic's Field) or
those of `Within`. Bounds of Field hold whatever is read. What came later (those of `Within`, and
that text is neither number nor `true`) holds what is given now, and spares what an earlier version
stored.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
)
from pydantic_core import CoreSchema, PydanticCustomError, PydanticKnownError, core_schema

from mainspring.errors import UsageError

BUNDLED = "bundled"
"""The generated task family, and the tiny model made for it."""
STORED = {"stored": True}
"""Validation context of configurations that were accepted before: newer refusals spare them."""
CONCURRENCY = 32
"""Rollouts of one evaluation in flight at once, unless it is set."""
YEAR_S = 365 * 24 * 3600.0
"""The longest time limit: Temporal counts in nanoseconds, and cannot count much further."""
MANY = 1_000_000
"""More steps, groups, rollouts or turns than a campaign can have."""
MANY_TOKENS = 1_000_000_000
"""More tokens than a context or a batch can have."""
LARGE = 1e6
"""Beyond any factor, coefficient or bound that means something; float32 still counts by it."""


class Counts(StrEnum):
    """Stands in the Annotated of a field, or of a whole section, that a stored campaign may change
    (`mainspring.config.files.changes`). A field without it never changes: it is a part of what the
    campaign is."""

    STEPS = "steps"
    """A change counts from a step on: for its batch and its update."""
    ROLLOUTS = "rollouts"
    """A change counts for rollouts that start later, under the version that a step begins with."""
    AT_ONCE = "at once"
    """A change counts at once: no weights follow from it."""


class Added(StrEnum):
    """Stands in the Annotated of a field that came after the oldest program which works on the
    store's schema (`migrations.accepted`). It is stored only where it is not at its default: that
    program refuses fields that it does not know."""

    SINCE = "since"


@dataclass(frozen=True, slots=True)
class Within:
    """Bounds of a number, or of each number in a list or table; stands in the field's Annotated.
    Python would take `true` for 1, and pydantic "4" for 4: that is refused. Bounds given here, and
    the refusal of text, spare stored configurations."""

    le: float | None = None
    lt: float | None = None
    ge: float | None = None

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.with_info_wrap_validator_function(self._checked, handler(source))

    def _checked(
        self, given: Any, check: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> Any:
        if any(isinstance(each, bool) for each in _leaves(given)):
            raise PydanticCustomError("true_for_number", "must be a number, not true or false")
        found = check(given)
        if info.context != STORED and any(isinstance(each, str) for each in _leaves(given)):
            raise PydanticCustomError("text_for_number", "must be a number, without quotes")
        for number in () if info.context == STORED else _numbers(found):
            if self.ge is not None and number < self.ge:
                raise PydanticKnownError("greater_than_equal", {"ge": self.ge})
            if self.le is not None and number > self.le:
                raise PydanticKnownError("less_than_equal", {"le": self.le})
            if self.lt is not None and number >= self.lt:
                raise PydanticKnownError("less_than", {"lt": self.lt})
        return found


def _true_or_false(given: Any, info: ValidationInfo) -> Any:
    if isinstance(given, bool) or info.context == STORED:
        return given
    raise PydanticCustomError("bool_type", "must be true or false")


Switch = Annotated[bool, BeforeValidator(_true_or_false)]
"""`true` or `false`: pydantic would read them in "yes" and in 1."""


def bundled_is_no_folder(option: str) -> UsageError:
    """For commands that take a model's folder: that name is no path, whatever lies beside."""
    return UsageError(
        f"{option} {BUNDLED}: the bundled model has no folder before its campaign made one",
        remedy="give the folder of a policy version, HOME/campaigns/NAME/policies/v00000/hf; "
        "`mainspring train` and `quickstart` start its engine; a folder of yours that is called "
        f"{BUNDLED} needs its absolute path",
    )


class Section(BaseModel):
    # Validators of the kinds of run that a command does not read are never built.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


def _leaves(given: Any) -> Iterator[Any]:
    if isinstance(given, Mapping):
        given = list(given.values())
    if isinstance(given, list | tuple):
        for each in given:
            yield from _leaves(each)
    else:
        yield given


def _numbers(given: Any) -> Iterator[float]:
    return (each for each in _leaves(given) if isinstance(each, int | float))
