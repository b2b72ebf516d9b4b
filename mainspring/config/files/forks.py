"""The configuration of a fork: a campaign that begins with a policy version of another one.

Invariants: pure; what the files of that version are for stays (model, tasks, seed, adapters,
optimizer); everything else may be set anew. Imported by commands.
"""

from collections.abc import Collection, Sequence
from typing import Any

from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.changes import (
    FieldChange,
    counts_of,
    differences,
    given,
    is_in_place,
)
from mainspring.config.files.layers import keys_of, name_of
from mainspring.errors import UsageError

_KEPT = (
    *("seed", "tasks", "schedule", "policy.model", "policy.publish", "evaluation.splits"),
    "evaluation.sources",
    *("trainer.engine", "trainer.lora", "trainer.critic", "trainer.warm_start"),
    *("trainer.optimizer.name", "trainer.dtype"),
)
"""Fields and sections that the parent's checkpoint, tasks and numbers of groups depend on."""


def forked(
    parent: CampaignConfig,
    at_fork: CampaignConfig,
    name: str,
    values: Sequence[tuple[tuple[str, ...], Any]],
) -> tuple[CampaignConfig, dict[str, tuple[Any, Any]]]:
    """The configuration to store, and the fields that change, each with its value before and after.
    `parent`: as it was stored; `at_fork`: as it is for the fork's first step. Raises ConfigError
    for values that a field cannot have, and UsageError for what a fork cannot set."""
    named = [name_of(keys) for keys, _ in values]
    refused = [field for field in named if any(_within(field, kept) for kept in (*_KEPT, "name"))]
    if refused:
        raise UsageError(
            f"a fork of campaign {parent.name} cannot set {', '.join(refused)}: its first version "
            "is made for the parent's",
            remedy="start a new campaign for that",
        )
    wanted = differences(at_fork, given(at_fork, values))
    since = {
        field: pair
        for field, pair in wanted.items()
        if counts_of(field) is not None and not is_in_place(field)
    }
    of_all = [(keys_of(field), wanted[field][1]) for field in wanted if field not in since]
    return given(parent, [(("name",), name), *of_all]), since


def inherited(
    changes: Sequence[FieldChange], version: int, anew: Collection[str]
) -> list[FieldChange]:
    """The parent's changes that a fork of `version` has as well: all but later ones of the fields
    `anew`."""
    return [change for change in changes if change.from_step <= version or change.field not in anew]


def _within(field: str, section: str) -> bool:
    return f"{field}.".startswith(f"{section}.")
