"""The forms of AgentGym's services: how a world is made, reset, stepped and closed, and what each
answer holds.

Invariant: what is sent and read is told by a `ServiceForm` alone, and what an answer lacks is
named, never guessed. AgentGym's own loop takes the last step's number as the score, never a sum; so
here: a step's reward is by how much that number changed. Pure; imported by the client of these
services.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from mainspring.config.agents.environments import EnvironmentConfig, EnvironmentKind, Family

DATA_IDX = "data_idx"


class Opening(StrEnum):
    """Shape of the answer to a reset."""

    FIELDS = "fields"
    """An object; the texts of `ServiceForm.opening_fields`, one line each."""
    FIRST = "first"
    """A list; its first entry is the observation."""
    TEXT = "text"
    """The observation alone."""


@dataclass(frozen=True, slots=True)
class ServiceForm:
    id_field: str = "id"
    """Name of the world's id in every request."""
    bare_id: bool = False
    """The answer to a create is the id alone."""
    creates_with_number: bool = False
    """A create is given the task's number, as `id`."""
    number_field: str = DATA_IDX
    """Name of the task's number at reset."""
    reset: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of a reset."""
    opening: Opening = Opening.FIELDS
    opening_fields: tuple[str, ...] = ("observation",)
    observation_field: str = "observation"
    actions_field: str = ""
    """Name of the actions that are possible, which agents are shown; empty: there are none."""
    score_field: str = "reward"
    scale: float = 1.0
    sums: bool = False
    """The number is the step's part of the score, not the score so far."""
    closes: bool = True
    leaves: bool = False
    """The service has the route /leave: it scores a world that its agent leaves before the end."""
    worlds: int | None = None
    """Most worlds of one service; None: as many as are asked for."""


_ENV_IDX = ServiceForm(id_field="env_idx", bare_id=True, closes=False)
FORMS: Mapping[Family, ServiceForm] = {
    Family.TEXTCRAFT: ServiceForm(),
    Family.BABYAI: ServiceForm(score_field="score"),
    Family.SCIWORLD: ServiceForm(
        score_field="score",
        scale=100.0,
        opening_fields=("task_description", "observation"),
    ),
    Family.ALFWORLD: ServiceForm(
        number_field="game",
        reset={"world_type": "Text"},
        actions_field="available_actions",
        closes=False,
    ),
    Family.WEBSHOP: replace(
        _ENV_IDX,
        number_field="session_id",
        opening=Opening.FIRST,
        observation_field="state",
        worlds=8000,
    ),
    Family.SQLGYM: replace(
        _ENV_IDX,
        number_field="item_id",
        opening=Opening.FIRST,
        observation_field="state",
        worlds=8,
    ),
    Family.SEARCHQA: replace(
        _ENV_IDX,
        creates_with_number=True,
        number_field="id",
        opening=Opening.TEXT,
        closes=True,
    ),
    Family.TOOLS: replace(
        _ENV_IDX, creates_with_number=True, number_field="id", opening=Opening.TEXT
    ),
}

VERIFIERS = ServiceForm(leaves=True)
"""Form of Mainspring's service for environments of verifiers (`infra/environments/verifiers`)."""


def form_of(config: EnvironmentConfig) -> ServiceForm:
    """The family's, with what the section sets."""
    is_verifiers = config.kind is EnvironmentKind.VERIFIERS
    form = VERIFIERS if is_verifiers else FORMS[config.family]
    names = ("id_field", "number_field", "observation_field", "score_field", "scale")
    names = (*names, "sums", "closes", "worlds")
    given = {name: getattr(config, name) for name in names}
    form = replace(form, **{name: value for name, value in given.items() if value is not None})
    is_renamed = config.observation_field is not None and form.opening_fields == ("observation",)
    return replace(form, opening_fields=(form.observation_field,)) if is_renamed else form


def number_of(data: Mapping[str, Any], form: ServiceForm) -> int:
    """The service's number of a task. Raises ValueError."""
    given = [name for name in dict.fromkeys((DATA_IDX, form.number_field)) if name in data]
    number = data[given[0]] if given else None
    if isinstance(number, bool) or not isinstance(number, int) or number < 0 or len(given) > 1:
        found = ", ".join(f"{name} = {data[name]!r}" for name in given) or "nothing"
        raise ValueError(f"its data must have {DATA_IDX}, a whole number from 0, not {found}")
    return number
