"""Section [tasks], and sets of tasks: which tasks a run goes over.

Invariants: a set has one label in its run, under which its tasks and its groups are stored: letters
that every id and every tracker takes. No task is in two sets of a run, because a task has one
source and one split, and no two sets have the same ones. Imported by configurations and by the
store.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from mainspring.config.section import BUNDLED, LARGE, MANY, Section, Within
from mainspring.status import Unverified

LABEL = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"


class NamedSet(Section):
    """One split of a task source, under a name of its own."""

    source: Annotated[str, Field(min_length=1)]
    """Name of the task source, or "bundled"."""
    split: Annotated[str, Field(min_length=1)]
    """Split of the source."""
    name: Annotated[str, Field(min_length=1)] | None = None
    """Name of the set in figures, ids and trackers: letters, digits, ".", "-" and "_". Unset: the
    last part of the source and the split, as "SWE-bench_Verified.test"."""
    limit: Annotated[int | None, Within(le=MANY)] = Field(default=None, ge=1)
    """Number of tasks, from the start of the split; those that are skipped because they are not
    verified do not count. Unset: all."""
    agent: str | None = None
    """Name of the section [agents.NAME] that plays its tasks whose row asks for no agent. Unset:
    [agent]."""
    unverified: Unverified = Unverified.SKIP
    """Treatment of tasks that are not verified (bundled ones need no verification)."""

    @model_validator(mode="before")
    @classmethod
    def _name_is_stored(cls, raw: Any) -> Any:
        """Queries of what is stored find a set by its name."""
        if not isinstance(raw, dict) or raw.get("name") or not isinstance(raw.get("source"), str):
            return raw
        split = raw.get("split", cls.model_fields["split"].get_default())
        return {**raw, "name": f"{raw['source'].rpartition('/')[2]}.{split}"}

    @property
    def label(self) -> str:
        return self.name or ""

    @property
    def told(self) -> str:
        return f"split {self.split!r} of source {self.source!r}"

    @model_validator(mode="after")
    def _label_is_fit(self) -> Self:
        if re.fullmatch(LABEL, self.label):
            return self
        raise ValueError(
            f"the name {self.label!r} cannot be used in ids: set name to at most 64 letters, "
            'digits, ".", "-" and "_", beginning with a letter or digit (unset, it follows from '
            "source and split)"
        )


class TrainSet(NamedSet):
    """One of several sets that a campaign trains on."""

    split: Annotated[str, Field(min_length=1)] = "train"
    """Split of the source."""
    weight: Annotated[float, Within(le=LARGE)] = Field(default=1.0, gt=0)
    """Share of the groups that are played on its tasks, beside the weights of the other sets: after
    any number of groups each set has had its share of them, to less than one. A group that is
    replaced (masked, or with equal rewards) counts as one that was played."""


class TasksConfig(Section):
    source: str = BUNDLED
    """"bundled" for the generated tasks, else the name of an imported task source."""
    num_train: Annotated[int, Within(le=10 * MANY)] = Field(default=2048, ge=1)
    """Size of the split "train" (bundled tasks only)."""
    num_heldout: Annotated[int, Within(le=10 * MANY)] = Field(default=128, ge=1)
    """Size of the split "heldout": new instances of the training templates (bundled tasks only)."""
    num_heldout_templates: Annotated[int, Within(le=10 * MANY)] = Field(default=64, ge=0)
    """Size of the split "heldout_templates": templates that never occur in training (bundled tasks
    only)."""
    unverified: Unverified = Unverified.SKIP
    """Treatment of tasks that are not verified (bundled ones need no verification)."""
    sets: tuple[TrainSet, ...] = Field(default=(), alias="<sets>")
    """Several sets in the place of the one above, as a list of tables [[tasks]]. Groups are drawn
    from them in proportion to their weights, and each set goes through its tasks in an order of its
    own. What the policy is measured on stands in [[evaluation.sources]] then."""

    @model_validator(mode="before")
    @classmethod
    def _list_of_sets(cls, raw: Any) -> Any:
        if not isinstance(raw, list | tuple):
            return raw
        if not raw:
            raise ValueError("has no set: write one or more tables [[tasks]], or [tasks]")
        return {"source": "", "<sets>": raw}

    @model_serializer(mode="wrap")
    def _as_written(self, dump: SerializerFunctionWrapHandler) -> Any:
        dumped = dump(self)
        sets = dumped.pop("sets", None) or dumped.pop("<sets>", None)
        return sets if sets else {name: each for name, each in dumped.items() if name != "<sets>"}

    @property
    def told(self) -> str:
        """The sources, for people."""
        return ", ".join(each.label for each in self.sets) or self.source


@dataclass(frozen=True, slots=True)
class TaskSet:
    """Tasks that a run goes over under one label."""

    source: str
    """As the store lists it."""
    split: str
    num_listed: int | None = None
    """Tasks at the start of the split that belong to it; None: all."""
    limit: int | None = None
    """Tasks that are used, of those that can be; None: all."""
    agent: str | None = None
    """The agent of tasks that ask for none; None: the section [agent]."""
    unverified: Unverified = Unverified.SKIP
    is_bundled: bool = False
