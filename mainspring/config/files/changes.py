"""Changes of a stored campaign: which fields may change, and the configuration of each step.

A campaign is stored once. What it *is* (seed, model, tasks, agents, group size, schedule) never
changes; what it *runs with* changes by a row for each field, which tells the first step that it
counts for. Invariants: pure; the configuration of a step follows from the rows that count for it,
in the order of those steps; no row is added for a step that is planned. Imported by the store and
by commands.
"""

import json
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ValidationError

from mainspring.algorithms.schedule import Batches, Schedule
from mainspring.config.campaign import CampaignConfig
from mainspring.config.files import errors
from mainspring.config.files.layers import SET, Layered, keys_of, name_of
from mainspring.config.section import STORED, Counts
from mainspring.errors import ConfigError, UsageError

ALWAYS = 0
"""The first step of a change that counts at once: for every step."""
LENGTH = "trainer.num_steps"
_IN_PLACE = ("evaluation.concurrency", "tracking")
"""Fields and sections that are written into what is stored: their rows tell only who did it."""
_OF_SCHEDULE = ("trainer.groups_per_step", "trainer.max_staleness")
"""Fields that number the groups of a reproducible campaign."""


@dataclass(frozen=True, slots=True)
class FieldChange:
    number: int
    """From 1, in the order in which they were made."""
    field: str
    before: Any
    after: Any
    from_step: int
    """First step that it counts for; ALWAYS: it counts at once."""
    changed_by: str
    changed_at: datetime

    @property
    def line(self) -> str:
        since = f"from step {self.from_step}" if self.from_step != ALWAYS else "at once"
        return f"{self.field}  {json.dumps(self.before)} -> {json.dumps(self.after)}, {since}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"changed_at": self.changed_at.isoformat()}


def counts_of(field: str) -> Counts | None:
    """How a change of a field, as "section.field", counts; None: it never changes."""
    model: type[BaseModel] | None = CampaignConfig
    parts = iter(keys_of(field))
    for part in parts:
        info = None if model is None else model.model_fields.get(part)
        if info is None:
            return None
        for mark in info.metadata:
            if isinstance(mark, Counts):
                return mark
        is_table, model = _inside(info.annotation)
        if is_table:
            next(parts, None)  # its name
    return None


def at_step(base: CampaignConfig, changes: Iterable[FieldChange], step: int) -> CampaignConfig:
    """The configuration that a step, and the rollouts of the version before it, have."""
    counting = [change for change in _laid_over(changes) if change.from_step <= step]
    if not counting:
        return base
    layers = Layered(table=base.model_dump(mode="json"))
    for change in counting:
        layers.put(keys_of(change.field), change.after, SET, change.field)
    return CampaignConfig.model_validate(layers.table, context=STORED)


def latest(base: CampaignConfig, changes: Sequence[FieldChange]) -> CampaignConfig:
    """The configuration when all changes count."""
    return at_step(base, changes, max((change.from_step for change in changes), default=ALWAYS))


def is_in_place(field: str) -> bool:
    """Whether a change of the field is written into what is stored."""
    return any(f"{field}.".startswith(f"{each}.") for each in _IN_PLACE)


def _laid_over(changes: Iterable[FieldChange]) -> list[FieldChange]:
    laid = (change for change in changes if not is_in_place(change.field))
    return sorted(laid, key=lambda change: (change.from_step, change.number))


def batches_of(
    config: CampaignConfig, base: CampaignConfig, changes: Iterable[FieldChange]
) -> Batches | None:
    """Batches of a reproducible campaign with the configuration `config`; None for another one."""
    batches = config.batches
    if batches is None:
        return None
    longest = [base.trainer.num_steps]
    for change in sorted(changes, key=lambda change: change.number):
        if change.field == LENGTH and change.after > longest[-1]:
            longest.append(change.after)
    return replace(batches, lengths=tuple(longest))


def unchanged(
    base: CampaignConfig, changes: Iterable[FieldChange], wanted: CampaignConfig
) -> CampaignConfig:
    """`wanted` with the changes of all fields that it has as they were stored: a file that was not
    touched takes no change back."""
    stored = base.model_dump(mode="json")
    layers = Layered(table=wanted.model_dump(mode="json"))
    for change in _laid_over(changes):
        keys = keys_of(change.field)
        if _value(layers.table, keys) == _value(stored, keys) or change.field in layers.origins:
            layers.put(keys, change.after, SET, change.field)
    return CampaignConfig.model_validate(layers.table, context=STORED)


def given(config: CampaignConfig, values: Sequence[tuple[tuple[str, ...], Any]]) -> CampaignConfig:
    """The configuration with these values of fields. Raises ConfigError with a line for each field
    that does not exist, or cannot have its value. What is refused since the campaign was stored
    spares it."""
    layers = Layered(table=config.model_dump(mode="json"))
    for keys, value in values:
        layers.put(keys, value, SET, name_of(keys))
    known = _refusals(config.model_dump(mode="json"))
    if lines := [line for line in _refusals(layers.table) if line not in known]:
        raise ConfigError(
            "\n".join([f"campaign {config.name} cannot have these values:", *lines]),
            remedy="see docs/campaign.md for every field and its bounds",
        )
    return CampaignConfig.model_validate(layers.table, context=STORED)


def _refusals(table: dict[str, Any]) -> list[str]:
    try:
        CampaignConfig.model_validate(table)
    except ValidationError as error:
        return errors.explain(error, CampaignConfig)
    return []


def differences(stored: BaseModel, wanted: BaseModel) -> dict[str, tuple[Any, Any]]:
    """By field: the value before and the one after, as JSON has them."""
    before, after = stored.model_dump(mode="json"), wanted.model_dump(mode="json")
    return {path: (old, new) for path, old, new in _differing(before, after)}


def refuse_fixed(config: CampaignConfig, fields: Iterable[str]) -> None:
    """Refuse what the campaign is. Raises UsageError naming each such field."""
    fixed = [field for field in fields if counts_of(field) is None]
    if fixed:
        raise UsageError(
            f"campaign {config.name}: what a campaign is never changes: {', '.join(sorted(fixed))}",
            remedy="give the new campaign another name; docs/campaign.md tells of each field "
            "whether it may change",
        )
    of_schedule = [field for field in fields if field in _OF_SCHEDULE]
    if config.schedule is Schedule.REPRODUCIBLE and of_schedule:
        raise UsageError(
            f"campaign {config.name} is reproducible: its groups are numbered by "
            f"{of_schedule[0]}, which cannot change",
            remedy='make another campaign; with schedule = "fastest" a campaign can change it',
        )


def _differing(
    before: Any, after: Any, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in sorted({*before, *after}):
            yield from _differing(before.get(key), after.get(key), (*path, key))
    elif before != after:
        yield name_of(path), before, after


def _inside(annotation: Any) -> tuple[bool, type[BaseModel] | None]:
    """Whether it is a table of sections by name, and the section's class, if it has one."""
    is_table = typing.get_origin(annotation) is dict
    inner = typing.get_args(annotation)[1] if is_table else annotation
    is_union = isinstance(inner, types.UnionType) or typing.get_origin(inner) is typing.Union
    for kind in typing.get_args(inner) if is_union else (inner,):
        if isinstance(kind, type) and not typing.get_args(kind) and issubclass(kind, BaseModel):
            return is_table, kind
    return is_table, None


def _value(table: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        table = table.get(key) if isinstance(table, Mapping) else None
    return table
