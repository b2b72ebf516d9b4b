"""Entries of evaluation.sources: task sets other than the trained one that a campaign measures its
policy on, each with limits of its own for the agents.

Invariant: an entry changes limits only, never which agents there are. Imported by `evaluation`.
"""

from collections.abc import Collection, Mapping
from typing import Annotated, Any

from pydantic import Field

from mainspring.config.agents.agent import AGENT_LIMITS
from mainspring.config.section import LARGE, MANY, MANY_TOKENS, YEAR_S, Within
from mainspring.config.tasks import NamedSet


class EvalSource(NamedSet):
    """One split of another task source that the policy is measured on. A limit that is set here
    holds for every agent that plays its tasks."""

    split: Annotated[str, Field(min_length=1)] = "test"
    """Split of the source."""
    step_limit: Annotated[int | None, Within()] = Field(default=None, ge=1, le=500)
    """Maximum number of turns of a rollout. Unset, here and below: that of the agent's section."""
    max_format_errors: Annotated[int | None, Within(le=MANY)] = Field(default=None, ge=1)
    """Malformed replies in a row that end the rollout."""
    command_timeout_s: Annotated[float | None, Within()] = Field(default=None, gt=0, le=3600)
    """Time limit of one command."""
    observation_chars: Annotated[int | None, Within(le=MANY_TOKENS)] = Field(default=None, ge=200)
    """Maximum number of characters that the agent sees of an output."""
    rollout_timeout_s: Annotated[float | None, Within(le=YEAR_S)] = Field(default=None, gt=0)
    """Time that a rollout's replies and commands may take together."""
    cost_limit: Annotated[float | None, Within(le=LARGE)] = Field(default=None, gt=0)
    """Dollars that a rollout's calls may cost."""

    @property
    def limits(self) -> dict[str, Any]:
        """Limits of its own, by field of an agent's section."""
        values = {name: getattr(self, name, None) for name in AGENT_LIMITS}
        return {name: value for name, value in values.items() if value is not None}


def check_sets(
    sets: Mapping[str, NamedSet],
    splits: Mapping[str, str],
    source: str,
    agents: Collection[str],
    overridden: bool,
) -> None:
    """Raises ValueError for sets that cannot be told from what else the campaign goes over.
    `sets`: by their place in the file; `splits`: those of `source`, each with what it is called.
    """
    labels = dict(splits)
    places = {(source, split): told for split, told in splits.items()}
    for where, each in sets.items():
        if each.label in labels:
            raise ValueError(
                f"{where} is called {each.label!r}, as {labels[each.label]} is: give it another "
                "name"
            )
        if (place := (each.source, each.split)) in places:
            raise ValueError(
                f"{where} has the tasks of {places[place]} ({each.told}): a campaign has each task "
                "once; remove one of them. Splits of tasks.source stand in evaluation.splits"
            )
        if each.agent is not None and overridden:
            raise ValueError(
                f"{where}.agent = {each.agent!r} does nothing with agent.override = true, which "
                "plays every task with [agent]: remove one of them"
            )
        if each.agent is not None and each.agent not in agents:
            there = ", ".join(agents) or "none"
            raise ValueError(
                f"{where}.agent = {each.agent!r} has no section [agents.{each.agent}]; there are: "
                f"{there}"
            )
        labels[each.label] = places[place] = where
