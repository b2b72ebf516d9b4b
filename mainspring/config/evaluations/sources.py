"""Entries of evaluation.sources: task sets other than the trained one that a campaign measures its
policy on, each with limits of its own for the agents.

Invariant: an entry changes limits only, never which agents there are. Imported by `evaluation`.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from mainspring.config.agents.agent import AGENT_LIMITS
from mainspring.config.section import LARGE, MANY, MANY_TOKENS, YEAR_S, Within
from mainspring.config.tasks import NamedSet


class EvalSource(NamedSet):
    """One split of another task source that the policy is measured on. A limit that is set here
    holds for every agent that plays its tasks."""

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


def check_sources(
    sources: Sequence[EvalSource],
    taken: Mapping[str, str],
    used: Mapping[tuple[str, str], str],
    agents: Collection[str],
    overridden: bool,
) -> None:
    """Raises ValueError for sources that cannot be told from what else the campaign goes over.
    `taken`: what has which label; `used`: what has the tasks of which source and split; both as a
    person wrote it."""
    labels, places = dict(taken), dict(used)
    for number, source in enumerate(sources):
        where = f"evaluation.sources.{number}"
        if source.label in labels:
            raise ValueError(
                f"{where} is called {source.label!r}, as {labels[source.label]} is: give it "
                "another name"
            )
        if (place := (source.source, source.split)) in places:
            raise ValueError(
                f"{where} has the tasks of {places[place]} ({source.told}): a campaign has each "
                "task once; remove the entry. Splits of tasks.source stand in evaluation.splits"
            )
        if source.agent is not None and overridden:
            raise ValueError(
                f"{where}.agent = {source.agent!r} does nothing with agent.override = true, which "
                "plays every task with [agent]: remove one of them"
            )
        if source.agent is not None and source.agent not in agents:
            there = ", ".join(agents) or "none"
            raise ValueError(
                f"{where}.agent = {source.agent!r} has no section [agents.{source.agent}]; there "
                f"are: {there}"
            )
        labels[source.label] = places[place] = where
