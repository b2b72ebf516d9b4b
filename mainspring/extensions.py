"""Which extensions of your own a configuration names, and which processes import them.

Invariant: the same table as in docs/extending.md. Pure. Imported by commands, which ask each
process whether it can import its share before a run is stored.
"""

from collections.abc import Iterator
from enum import StrEnum

from pydantic import BaseModel

from mainspring.config.any_run import AnyRun
from mainspring.config.campaign import CampaignConfig
from mainspring.config.named import is_path
from mainspring.config.sft import SftConfig
from mainspring.config.tracking import TrackingConfig
from mainspring.programs.functions import FUNCTION
from mainspring.programs.harbor import HARBOR
from mainspring.training.tracking import TRACKERS, chosen

HARBOR_AGENT = "Harbor agent"


class ProcessRole(StrEnum):
    ROLLOUT_WORKER = "rollout worker"
    """Chooses tasks, plays the agent's side of a rollout, filters groups and computes rewards."""
    NODE = "node"
    """Holds sandboxes, or worlds of an environment of your own."""
    TRAINER = "trainer"
    """Computes advantages, losses and gradients."""


class Extension(BaseModel):
    what: str
    """The extension point, for messages."""
    path: str
    """As "package.module:attribute"; of an agent of Harbor also its name there."""


def extensions_of(config: AnyRun, role: ProcessRole) -> list[Extension]:
    """Extensions that a process of `role` imports for a run; what Mainspring brings is left out.

    Harbor's own agents are listed: they need a package that is an extra."""
    return [
        Extension(what=what, path=name)
        for what, name, roles in _named(config)
        if role in roles and (is_path(name) or what == HARBOR_AGENT)
    ]


def _named(config: AnyRun) -> Iterator[tuple[str, str, tuple[ProcessRole, ...]]]:
    if isinstance(config, SftConfig):
        yield "engine", config.trainer.engine_name, (ProcessRole.TRAINER,)
        yield from _trackers(config.tracking)
        return
    yield "agent", config.agent.kind, (ProcessRole.ROLLOUT_WORKER, ProcessRole.NODE)
    if config.agent.kind == FUNCTION:
        yield FUNCTION, str(config.agent.options.get("function")), (ProcessRole.NODE,)
    if config.agent.kind == HARBOR:
        yield HARBOR_AGENT, str(config.agent.options.get("agent")), (ProcessRole.NODE,)
    for part in config.reward.parts:
        yield "reward", part.name, (ProcessRole.ROLLOUT_WORKER,)
    for path in config.environments.values():
        yield "environment", path, (ProcessRole.NODE,)
    if config.sandbox.backend is not None:
        yield "sandbox backend", config.sandbox.backend, (ProcessRole.NODE,)
    if isinstance(config, CampaignConfig):
        trainer = config.trainer
        yield "curriculum", config.curriculum.kind, (ProcessRole.ROLLOUT_WORKER,)
        yield "filter", trainer.filter, (ProcessRole.ROLLOUT_WORKER,)
        yield "advantage", trainer.advantage, (ProcessRole.TRAINER,)
        yield "loss", trainer.loss, (ProcessRole.TRAINER,)
        yield "correction", trainer.correction.kind, (ProcessRole.TRAINER,)
        yield "engine", trainer.engine_name, (ProcessRole.TRAINER,)
        yield from _trackers(config.tracking)


def _trackers(tracking: TrackingConfig) -> Iterator[tuple[str, str, tuple[ProcessRole, ...]]]:
    for name in chosen(tracking):
        yield f"tracker {name}", TRACKERS[name], (ProcessRole.TRAINER,)
