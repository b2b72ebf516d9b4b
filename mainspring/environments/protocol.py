"""The seam between a rollout and what its agent acts on: an environment opens worlds and grades.

- A rollout has one world at a time. The workflow drives it: `open`, one `step` for each command of
  the agent, `finish`; then `grade`.
- A world lives on one sandbox node. When it is lost, another one is opened and all recorded steps
  are taken again: each must end, print and reward as it did the first time. So a world depends on
  its task and its steps alone; what must be random is seeded by the rollout's id.
- What `finish` gives is stored before the world is closed. `grade` sees that and the task, on any
  node, perhaps twice.
- A step's command is the policy's text, and hostile: it is never evaluated in the node's process.

Implemented by `infra.environments.swe`, by services over HTTP (`infra.environments.gym`) and by
environments of your own (docs/extending.md).
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from mainspring.config.run import RunConfig
from mainspring.errors import SandboxError, WorkFailed
from mainspring.ids import RolloutId, SandboxId
from mainspring.status import FaultKind, Verdict
from mainspring.tasks.criterion import GradeReport, References


class WorldLost(SandboxError):
    """The world is gone, or cannot be trusted any more: another one is opened."""

    fault = FaultKind.SANDBOX_LOST


class EnvironmentBroken(WorkFailed):
    """An environment of one's own raised, or returned something else than its protocol has: the
    campaign cannot continue with it."""

    fault = FaultKind.CONFIG_UNUSABLE


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Outcome of one step."""

    returncode: int
    """0: it did what was asked; -1 when killed at the timeout."""
    output: bytes
    """Output that the agent is shown: of a shell, stdout and stderr interleaved as written."""
    truncated: bool = False
    """A part of the output is left out."""
    timed_out: bool = False
    wall_s: float = 0.0
    reward: float | None = None
    """Reward of this step alone, where its environment gives one."""
    is_over: bool = False
    """The world has ended with this step: no further one is taken, and what it left is graded."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Result that a world leaves."""

    result: bytes
    """Result that is graded; empty: nothing was achieved, and it is not graded."""
    note: str | None = None
    """Why it is empty, or what it lacks."""


class Judged(NamedTuple):
    verdict: Verdict
    output: str = ""
    """The end of what decided it, for people."""
    report: GradeReport = GradeReport()
    """Facts behind the verdict; rewards may use its `score`."""


@dataclass(frozen=True, slots=True)
class Place:
    """For whom a world is opened, or a result graded."""

    world: SandboxId
    """Another one for each world and each grading."""
    rollout: RolloutId
    config: RunConfig
    labels: Mapping[str, str]
    """For what a node's reaper finds: campaign, rollout, node."""
    lease: Callable[[str], Awaitable[None]]
    """To be called, with the backend's name, before a sandbox is made: only then the reaper knows
    whose it is."""
    references: References = field(default_factory=References)
    """For grading: what the task's tests did without the result."""


class World(Protocol):
    async def step(self, step_id: str, command: str, timeout_s: float) -> CommandResult:
        """Take one step. `step_id` is the same when a step is taken again in another world."""
        ...

    async def finish(self) -> Finished:
        """Called once or more, after the last step."""
        ...

    async def close(self) -> None:
        """Free what it holds. Closing twice is fine."""
        ...


class Environment(Protocol):
    """Made once in a sandbox node, of the node's sandbox backends."""

    async def open(self, task: Any, place: Place) -> World:
        """`task` is of a kind that the campaign gives to this environment."""
        ...

    async def grade(self, task: Any, result: bytes, place: Place) -> Judged:
        """Decide whether what a world left resolves the task."""
        ...
