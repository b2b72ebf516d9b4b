"""What a fault kills, and which role is the next."""

import random
import time
from dataclasses import dataclass, field
from enum import StrEnum

import psutil


class Role(StrEnum):
    """What a fault kills."""

    ROLLOUT = "rollout"
    """A rollout worker."""
    NODE = "node"
    """A sandbox node."""
    TRAINER = "trainer"
    """The trainer's driver, once it has ranks."""
    STANDBY = "standby"
    """A trainer's driver that waits for the lease, or makes its ranks."""
    RANK = "rank"
    """A rank of the trainer."""
    RAYLET = "raylet"
    """The trainer's Ray daemon."""
    ENGINE = "engine"
    """A policy engine."""
    SANDBOX = "sandbox"
    """One sandbox with all that runs in it."""
    PROGRAM = "program"
    """A program that plays a rollout, in its sandbox, which lives on."""
    GATEWAY = "gateway"
    """A gateway."""
    POSTGRES = "postgres"
    """Postgres, all its processes."""
    TEMPORAL = "temporal"
    """Temporal."""
    FLEET = "fleet"
    """The command that keeps the others running; its workers end with it."""
    FORKS = "forks"
    """A process from which workers are forked; they end with it."""
    EVERYTHING = "everything"
    """All of it at once."""


NEVER_FROZEN = (Role.SANDBOX, Role.PROGRAM, Role.EVERYTHING)
"""A command in a sandbox has a time limit of its own: what stands still there ends by it, and the
rollout is another one. Everything at once is a machine that sleeps."""


@dataclass(slots=True)
class Freezer:
    """Processes that stand still, each until its time."""

    _until: list[tuple[float, psutil.Process]] = field(default_factory=list)

    def freeze(self, found: list[psutil.Process], seconds: float) -> None:
        for process in found:
            try:
                process.suspend()
                self._until.append((time.time() + seconds, process))
            except psutil.NoSuchProcess:
                continue

    def thaw(self, *, all_of_them: bool = False) -> None:
        now = time.time()
        for due, process in list(self._until):
            if all_of_them or due <= now:
                self._until.remove((due, process))
                try:
                    process.resume()
                except psutil.NoSuchProcess:
                    continue


class Draw:
    """Which roles to kill next: those that stand first, as long as nothing of them runs.

    At random, or evenly: in rounds, each with every role once, in another order.
    """

    def __init__(self, roles: tuple[Role, ...], rng: random.Random, *, even: bool) -> None:
        self._roles = roles
        self._rng = rng
        self._even = even
        self._left: list[Role] = []
        """Of this round."""

    def candidates(self) -> list[Role]:
        if not self._even:
            return [self._rng.choice(self._roles)]
        if not self._left:
            self._left = self._rng.sample(self._roles, len(self._roles))
        return list(self._left)

    def killed(self, role: Role) -> None:
        if self._even:
            self._left.remove(role)
