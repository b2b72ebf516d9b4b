"""Section [environments.NAME]: an environment that is a service over HTTP, and the form it speaks.

Invariants: the service is either run by somebody else (`url`) or started by each sandbox node
(`command`), never both; one of the package verifiers is always started by the node, by a command of
Mainspring's; fields that are unset are those of the family
(`mainspring/environments/families.py`).
"""

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from mainspring.config.policy import checked_url
from mainspring.config.section import LARGE, MANY, Section, Switch, Within

PORT = "{port}"
"""In an argument of the command: the port at which the service is asked."""
PYTHON = "{python}"
"""In an argument of the command: the Python of the sandbox node."""


class EnvironmentKind(StrEnum):
    """Kind of the service."""

    AGENTGYM = "agentgym"
    """It speaks one of the forms of AgentGym's services: create, reset, step, close."""
    VERIFIERS = "verifiers"
    """It is an environment of the package verifiers, which each sandbox node starts as a service in
    a Python that has the package."""


class Family(StrEnum):
    """Form of the service's requests and answers."""

    TEXTCRAFT = "textcraft"
    """`id`, `data_idx`, `observation`; `reward` is the score."""
    BABYAI = "babyai"
    """As textcraft; `score` is the score."""
    SCIWORLD = "sciworld"
    """As babyai; `score` counts to 100, and the reset also gives `task_description`."""
    ALFWORLD = "alfworld"
    """`id`, `game`; the actions that are possible belong to the observation. No close."""
    WEBSHOP = "webshop"
    """`env_idx`, `session_id`, `state`. No close."""
    SQLGYM = "sqlgym"
    """`env_idx`, `item_id`, `state`; eight worlds at most. No close."""
    SEARCHQA = "searchqa"
    """`env_idx`; `id` is the task's number, also of create."""
    TOOLS = "tools"
    """As searchqa, without close (weather, movies, sheets and the like)."""


OF_VERIFIERS = {"start_timeout_s": 300.0, "request_timeout_s": 120.0}
"""Defaults of that kind where they differ."""
ONLY_OF_VERIFIERS = frozenset({"environment", "args", "python"})
NOT_OF_VERIFIERS = frozenset(
    {"family", "url", "command", "port", "id_field", "number_field", "observation_field"}
    | {"score_field", "scale", "sums", "closes"}
)


class EnvironmentConfig(Section):
    """A service over HTTP that the tasks of the kind NAME are played in (docs/environments.md)."""

    kind: EnvironmentKind
    """Kind of the service."""
    family: Family = Family.TEXTCRAFT
    """Form of the requests and answers of the kind "agentgym", which must name it."""
    environment: str = ""
    """Id of an environment of the kind "verifiers", as its package is installed ("guess-v1" is the
    module guess_v1). This field and the next two are for that kind."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Fields of its taskset, or arguments of its load_environment."""
    python: str = ""
    """Python that has verifiers and the environment, on every sandbox node: absolute, or relative
    to the campaign file. Unset: Mainspring's own."""
    url: str = ""
    """Base URL of a service that runs already, as sandbox nodes reach it."""
    command: tuple[str, ...] = ()
    """Command that starts the service; each sandbox node runs it when it first needs it, and stops
    it when it ends. "{port}" in an argument is the port, "{python}" the node's Python."""
    port: Annotated[int, Within()] = Field(default=0, ge=0, le=65_535)
    """Port of 127.0.0.1 at which the command's service listens; 0: a free one."""
    folder: str = ""
    """Folder in which the command starts: absolute, or relative to the campaign file, whose folder
    it is unless it is set. An environment of verifiers may be a module in it."""
    variables: dict[str, str] = Field(default_factory=dict)
    """Variables of the command, besides the node's PATH, HOME and the like. PYTHONHASHSEED is 0
    unless it is set: worlds must repeat."""
    start_timeout_s: Annotated[float, Within()] = Field(default=45.0, gt=0, le=1200)
    """Time from the command's start to the service's first answer. For the kind "verifiers" 300
    unless it is set: importing takes long."""
    request_timeout_s: Annotated[float, Within()] = Field(default=30.0, gt=0, le=3600)
    """Time limit of one request, at most agent.command_timeout_s; then the world is lost. For the
    kind "verifiers" 120 unless it is set."""
    worlds: Annotated[int | None, Within(le=MANY)] = Field(default=None, ge=1)
    """Number of worlds that one service can hold. More wait. Unset: as many as the family has."""
    resolved_at: Annotated[float, Within(ge=-LARGE, le=LARGE)] = 1.0
    """Score from which a task is resolved, after `scale`."""
    same_opening: Switch = True
    """Refuse a task whose issue does not hold what the service shows first: the agent would act on
    what it was not shown."""
    num_tasks: Annotated[int, Within(le=MANY)] = Field(default=100, ge=0)
    """Number of training tasks that `mainspring tasks import` makes of this section: the numbers
    from 0."""
    num_heldout: Annotated[int, Within(le=MANY)] = Field(default=0, ge=0)
    """Number of held-out tasks that it makes: the numbers that follow."""
    id_field: str | None = Field(default=None, min_length=1)
    """Name of a world's id. Unset, here and below: as the family has it."""
    number_field: str | None = Field(default=None, min_length=1)
    """Name of the task's number at reset."""
    observation_field: str | None = Field(default=None, min_length=1)
    """Name of the observation in the answer to a step."""
    score_field: str | None = Field(default=None, min_length=1)
    """Name of the number that scores."""
    scale: Annotated[float | None, Within(le=LARGE)] = Field(default=None, gt=0)
    """Value of that number that counts as 1."""
    sums: Switch | None = None
    """Whether that number is one step's part of the score, which is their sum. Else it is the
    score so far."""
    closes: Switch | None = None
    """Whether the service has the route /close."""

    @model_validator(mode="before")
    @classmethod
    def _as_its_kind(cls, raw: Any) -> Any:
        """Fill what differs by kind."""
        if not isinstance(raw, Mapping):
            return raw
        if raw.get("kind") == EnvironmentKind.VERIFIERS:
            return {**OF_VERIFIERS, **raw}
        if raw.get("kind") == EnvironmentKind.AGENTGYM and "family" not in raw:
            raise ValueError(f"give family, the form of the service: {', '.join(Family)}")
        return raw

    @field_validator("args")
    @classmethod
    def _is_stored_as_it_is(cls, args: dict[str, Any]) -> dict[str, Any]:
        try:
            json.dumps(args, allow_nan=False)
        except (TypeError, ValueError):
            raise ValueError(
                "holds a date, a time, or a number that is not finite; write it as text"
            ) from None
        if "id" in args:
            raise ValueError("has id, which is the field environment")
        return args

    @field_validator("url")
    @classmethod
    def _is_a_url(cls, url: str, info: ValidationInfo) -> str:
        return checked_url(url, info) if url else url

    @model_validator(mode="after")
    def _is_of_its_kind(self) -> Self:
        # By value: what is stored has every field.
        fields = type(self).model_fields
        given = {
            name
            for name in fields
            if getattr(self, name) != fields[name].get_default(call_default_factory=True)
        }
        if self.kind is EnvironmentKind.VERIFIERS:
            if not self.environment or self.environment != self.environment.strip():
                raise ValueError('give environment, the id of the environment, such as "guess-v1"')
            if other := sorted(given & NOT_OF_VERIFIERS):
                raise ValueError(
                    f'{", ".join(other)}: the kind "verifiers" has its own command and form'
                )
        elif other := sorted(given & ONLY_OF_VERIFIERS):
            raise ValueError(f'{", ".join(other)}: only for the kind "verifiers"')
        return self

    @model_validator(mode="after")
    def _is_somewhere(self) -> Self:
        is_started = bool(self.command) or self.kind is EnvironmentKind.VERIFIERS
        if bool(self.url) is is_started:
            raise ValueError(
                "give either url, of a service that runs, or command, which starts one"
            )
        if self.url and (self.port or self.folder or self.variables):
            raise ValueError("port, folder and variables belong to command: url has the port")
        if self.command and not self.port and not any(PORT in word for word in self.command):
            raise ValueError(
                f'no argument of command has "{PORT}": the service would not know its port; '
                "add it, or set port to the one at which it listens"
            )
        if any("\0" in name + text or "=" in name for name, text in self.variables.items()):
            raise ValueError("variables: a name holds no = and neither holds NUL")
        return self
