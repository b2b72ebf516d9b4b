"""What a fault kills, and which role is the next."""

import random
from enum import StrEnum


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
