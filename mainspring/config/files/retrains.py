"""The configuration of a campaign that trains the stored batches of another one again.

Invariants: pure; what the batches and the initial weights follow from stays; what is given counts
from the first step on, and the parent's changes of other fields from their steps. The log-prob gap
is measured and not enforced, unless that is asked for: it tells how far the weights are from those
that sampled the batch. Imported by commands.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from mainspring.algorithms.gap import GapMode
from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.changes import FieldChange, differences, given
from mainspring.config.files.layers import keys_of, name_of
from mainspring.config.reward import JUDGE
from mainspring.errors import UsageError
from mainspring.rewards.scoring import PARTS

GAP_MODE = "trainer.gap.mode"
_OF_BATCHES = "the stored batches follow from it"
_OF_WEIGHTS = "the initial weights are made for it"
_BATCHES = (
    *("tasks", "schedule", "curriculum", "policy", "agent", "agents", "rollout", "sandbox"),
    *("environments", "judges", "prices", "trainer.group_size", "trainer.groups_per_step"),
    *("trainer.min_scored", "trainer.quorum", "trainer.straggler_s", "trainer.filter"),
    *("trainer.max_flat_groups", "trainer.max_staleness"),
)
_WEIGHTS = (
    *("seed", "trainer.engine", "trainer.lora", "trainer.critic", "trainer.warm_start"),
    "trainer.dtype",
)
_KEPT: Mapping[str, str] = {
    **dict.fromkeys(_BATCHES, _OF_BATCHES),
    **dict.fromkeys(_WEIGHTS, _OF_WEIGHTS),
    "name": "it is given with --as",
    "evaluation": "nothing is played, and nothing is evaluated",
    "reward.timeout_s": "it is for rollouts that are played",
    "trainer.num_steps": "the learning rate falls over these steps as it did; --steps gives the "
    "number of batches to train",
}
"""Fields and sections that stay, each with the reason."""
_OPTIMIZER = "trainer.optimizer.name"


def retrained(
    parent: CampaignConfig, name: str, values: Sequence[tuple[tuple[str, ...], Any]]
) -> CampaignConfig:
    """The configuration to store. `parent`: as it was stored. Raises ConfigError for values that a
    field cannot have, and UsageError for what such a campaign cannot set."""
    named = [name_of(keys) for keys, _ in values]
    _refuse(parent, named)
    config = given(parent, values)
    _refuse(parent, differences(parent, config))
    _refuse_unstored(parent, config)
    own = [] if any(_overlap(GAP_MODE, each) for each in named) else [GAP_MODE]
    return given(config, [(("name",), name), *((keys_of(each), GapMode.WARN) for each in own)])


def inherited(
    changes: Sequence[FieldChange], values: Sequence[tuple[tuple[str, ...], Any]]
) -> list[FieldChange]:
    """The parent's changes that count in it as well: those of fields that it is not given."""
    named = [GAP_MODE, *(name_of(keys) for keys, _ in values)]
    return [change for change in changes if not any(_overlap(change.field, each) for each in named)]


def _refuse(parent: CampaignConfig, fields: Sequence[str] | Mapping[str, Any]) -> None:
    reasons: dict[str, list[str]] = {}
    for field in fields:
        for kept, reason in _KEPT.items():
            if _within(field, kept):
                reasons.setdefault(reason, []).append(field)
    if parent.trainer.warm_start is not None and _OPTIMIZER in fields:
        reasons.setdefault(_OF_WEIGHTS, []).append(_OPTIMIZER)
    if reasons:
        told = "; ".join(f"{', '.join(each)} ({reason})" for reason, each in reasons.items())
        raise UsageError(
            f"a retrain of campaign {parent.name} cannot set {told}",
            remedy="set the loss, the advantage, the optimizer's rates or the reward; for the rest "
            "start a new campaign",
        )


def _refuse_unstored(parent: CampaignConfig, config: CampaignConfig) -> None:
    """Refuse parts of a reward that cannot be computed from what is stored."""
    stored = {part.label for part in parent.reward.parts}
    for part in config.reward.parts:
        if part.name == JUDGE and part.label not in stored:
            raise UsageError(
                f"a retrain of campaign {parent.name} cannot have the reward part {part.label}: "
                "this judge was not asked about its rollouts, and nothing is asked now",
                remedy=f"use parts that are stored: {', '.join(sorted(stored))}, or others without "
                "a judge",
            )
        if ":" in part.name and part not in parent.reward.parts and _asks(part.name):
            raise UsageError(
                f"a retrain of campaign {parent.name} cannot have the reward part {part.name}: "
                "the function asks judges or awaits something, and nothing is asked now",
                remedy="use a function that computes from the outcome alone",
            )


def _asks(name: str) -> bool:
    function = PARTS.find(name)
    return (
        inspect.iscoroutinefunction(function) or "judges" in inspect.signature(function).parameters
    )


def _within(field: str, section: str) -> bool:
    return f"{field}.".startswith(f"{section}.")


def _overlap(field: str, other: str) -> bool:
    return _within(field, other) or _within(other, field)
