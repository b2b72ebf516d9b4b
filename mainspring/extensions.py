"""All extension points: which table each has, which field of a configuration names it, and which
processes import it.

Invariant: the same table as in docs/extending.md, but for what only Mainspring brings. Pure; a
registry is named by its path, because some of them import what the domain must not. Imported by
commands, which ask each process whether it can import its share before a run is stored.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from pydantic import BaseModel

from mainspring.config.agents.agent import AgentConfig
from mainspring.config.any_run import AnyRun
from mainspring.config.campaign import CampaignConfig
from mainspring.config.registry import is_path
from mainspring.config.sft import SftConfig
from mainspring.programs.functions import FUNCTION, FUNCTIONS
from mainspring.programs.harbor import HARBOR, HARBOR_AGENTS
from mainspring.training.tracking import TRACKERS, chosen


class ProcessRole(StrEnum):
    ROLLOUT_WORKER = "rollout worker"
    """Chooses tasks, plays the agent's side of a rollout, filters groups and computes rewards."""
    NODE = "node"
    """Holds sandboxes, or worlds of an environment of your own."""
    TRAINER = "trainer"
    """Computes advantages, losses and gradients."""


@dataclass(frozen=True, slots=True)
class ExtensionPoint:
    what: str
    """For messages."""
    registry: str
    """As "module:attribute", a `mainspring.config.registry.Registry`."""
    protocol: str
    """The file that tells what one must do."""
    field: str | None = None
    """Dotted, of a configuration. None: a command's argument names it."""
    further_fields: str | None = None
    """Fields of the same form; a star stands for each name of a table."""
    roles: tuple[ProcessRole, ...] = ()
    """Processes that import one of your own, beside commands."""
    of_kind: str | None = None
    """The `agent.kind` that the field belongs to, in each section of that kind; None: any."""
    is_open: bool = True
    """The field takes paths of your own."""


OF_AGENT = "agent."
EACH = "*"
"""In a field: each section of a table."""
_WORKER, _NODE, _TRAINER = ProcessRole.ROLLOUT_WORKER, ProcessRole.NODE, ProcessRole.TRAINER
POINTS = (
    ExtensionPoint(
        what="agent",
        registry="mainspring.agents.choice:AGENTS",
        protocol="mainspring/agents/protocol.py",
        field="agent.kind",
        further_fields="agents.*.kind",
        roles=(_WORKER, _NODE),
    ),
    ExtensionPoint(
        what="tool",
        registry="mainspring.agents.tools.choice:TOOLS",
        protocol="mainspring/agents/tools/protocol.py",
        field="agent.tools",
        further_fields="agents.*.tools",
        roles=(_WORKER, _NODE),
    ),
    ExtensionPoint(
        what="context",
        registry="mainspring.agents.contexts.choice:CONTEXTS",
        protocol="mainspring/agents/contexts/protocol.py",
        field="agent.context.kind",
        further_fields="agents.*.context.kind",
        roles=(_WORKER, _NODE),
    ),
    ExtensionPoint(
        what="program",
        registry="mainspring.programs.profiles.choice:PROFILES",
        protocol="mainspring/programs/profile.py",
        field="agent.kind",
        is_open=False,
    ),
    ExtensionPoint(
        what=FUNCTIONS.what,
        registry="mainspring.programs.functions:FUNCTIONS",
        protocol="mainspring/programs/functions.py",
        field="agent.options.function",
        roles=(_NODE,),
        of_kind=FUNCTION,
    ),
    ExtensionPoint(
        what=HARBOR_AGENTS.what,
        registry="mainspring.programs.harbor:HARBOR_AGENTS",
        protocol="infra/harbor/making.py",
        field="agent.options.agent",
        roles=(_NODE,),
        of_kind=HARBOR,
    ),
    ExtensionPoint(
        what="reply parser",
        registry="mainspring.programs.parsing.choice:PARSERS",
        protocol="mainspring/programs/parsing/protocol.py",
        field="agent.tool_parser",
        roles=(_WORKER,),
    ),
    ExtensionPoint(
        what="environment",
        registry="mainspring.environments.choice:ENVIRONMENTS",
        protocol="mainspring/environments/protocol.py",
        field="environments",
        roles=(_NODE,),
    ),
    ExtensionPoint(
        what="sandbox backend",
        registry="infra.sandbox.backends:BACKENDS",
        protocol="infra/sandbox/protocol.py",
        field="sandbox.backend",
        roles=(_NODE,),
    ),
    ExtensionPoint(
        what="reward",
        registry="mainspring.rewards.scoring:PARTS",
        protocol="mainspring/rewards/scoring.py",
        field="reward.parts.name",
        roles=(_WORKER,),
    ),
    ExtensionPoint(
        what="judge",
        registry="infra.judges.judge:JUDGES",
        protocol="infra/judges/judge.py",
        field="judges.*.kind",
        roles=(_WORKER,),
    ),
    ExtensionPoint(
        what="curriculum",
        registry="mainspring.curricula.choice:CURRICULA",
        protocol="mainspring/curricula/protocol.py",
        field="curriculum.kind",
        roles=(_WORKER,),
    ),
    ExtensionPoint(
        what="filter",
        registry="mainspring.algorithms.choice:FILTERS",
        protocol="mainspring/algorithms/filters/protocol.py",
        field="trainer.filter",
        roles=(_WORKER,),
    ),
    ExtensionPoint(
        what="advantage",
        registry="mainspring.algorithms.choice:ADVANTAGES",
        protocol="mainspring/algorithms/advantages/protocol.py",
        field="trainer.advantage",
        roles=(_TRAINER,),
    ),
    ExtensionPoint(
        what="loss",
        registry="mainspring.algorithms.choice:LOSSES",
        protocol="trainer/losses/protocol.py",
        field="trainer.loss",
        roles=(_TRAINER,),
    ),
    ExtensionPoint(
        what="correction",
        registry="mainspring.algorithms.choice:CORRECTIONS",
        protocol="trainer/corrections/protocol.py",
        field="trainer.correction.kind",
        roles=(_TRAINER,),
    ),
    ExtensionPoint(
        what="engine",
        registry="mainspring.algorithms.choice:ENGINES",
        protocol="trainer/engines/protocol.py",
        field="trainer.engine",
        roles=(_TRAINER,),
    ),
    ExtensionPoint(
        what="tracker",
        registry="mainspring.training.tracking:TRACKERS",
        protocol="infra/tracking/protocol.py",
        field="tracking",
        roles=(_TRAINER,),
        is_open=False,
    ),
    ExtensionPoint(
        what="task source",
        registry="infra.sources.own:SOURCES",
        protocol="infra/sources/protocol.py",
    ),
)


class Extension(BaseModel):
    what: str
    """The extension point, for messages."""
    path: str
    """As "package.module:attribute"; of an agent of Harbor also its name there."""


def extensions_of(config: AnyRun, role: ProcessRole) -> list[Extension]:
    """Extensions that a process of `role` imports for a run; what Mainspring brings is left out.

    Harbor's own agents and trackers are listed: they need packages of extras."""
    extensions = [
        Extension(what=point.what, path=name)
        for point in POINTS
        if point.is_open and role in point.roles
        for name in _names(config, point)
        if is_path(name) or point.what == HARBOR_AGENTS.what
    ]
    if role is ProcessRole.TRAINER and isinstance(config, CampaignConfig | SftConfig):
        for name in chosen(config.tracking):
            extensions.append(Extension(what=f"tracker {name}", path=TRACKERS.path_of(name)))
    return extensions


def _names(config: AnyRun, point: ExtensionPoint) -> list[str]:
    """Values of the point's fields in the configuration."""
    if point.field is None:
        return []
    if point.of_kind is not None:
        of_kind = [each for each in _sections(config) if each.kind == point.of_kind]
        inner = point.field.removeprefix(OF_AGENT)
        return [name for each in of_kind for name in _at(each, inner) if isinstance(name, str)]
    fields = (point.field, point.further_fields)
    names = (name for field in fields if field for name in _at(config, field))
    return [name for name in names if isinstance(name, str)]


def _sections(config: AnyRun) -> list[AgentConfig]:
    return [config.agent, *config.agents.values()]


def _at(value: object, field: str) -> Iterator[object]:
    if isinstance(value, tuple):
        for item in value:
            yield from _at(item, field)
    elif not field:
        yield from value.values() if isinstance(value, Mapping) else (value,)
    else:
        first, _, rest = field.partition(".")
        if first == EACH and isinstance(value, Mapping):
            for item in value.values():
                yield from _at(item, rest)
            return
        inner = value.get(first) if isinstance(value, Mapping) else getattr(value, first, None)
        yield from _at(inner, rest)
