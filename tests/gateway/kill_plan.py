"""What the processes of a test of kills share: a folder with plans, marks and logs.

A turn is the number of tools' results in a request of the agent itself, and without tools that of
replies. Of each rollout some turns
are named at which something is killed, each once. Marks are files, so that they outlive processes.
"""

import json
import os
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from mainspring.programs.profiles.choice import PROFILES
from tests.chaos.fault_roles import Role

NAMES = [kind for kind in PROFILES if kind not in ("command", "function", "remote")]
"""Clients."""
SHARES = ("50", "90")
"""Of a client's calls, in percent: where something is killed."""
OWN = (Role.SANDBOX, Role.PROGRAM)
"""Each rollout has its own; all others are shared, and killed when all clients wait."""
SHARED = (Role.NODE, Role.ENGINE, Role.ROLLOUT, Role.POSTGRES, Role.TEMPORAL)


class Phase(StrEnum):
    """Where a request stands at its gateway when that one is killed."""

    ROW = "before the row"
    SIGNAL = "before the signal"
    GENERATING = "while generating"
    STORED = "stored, not sent"
    HALF = "half sent"


@dataclass(frozen=True, slots=True)
class KillPlan:
    folder: Path

    def write(self, turns: dict[str, list[int]], phase: Phase | None) -> None:
        """By rollout. With a phase the gateway kills itself; else the engine holds these replies
        until they are let go, and while generating until the gateway has died."""
        for each in self.folder.iterdir():
            each.unlink()
        plan = {"turns": turns, "phase": phase}
        (self.folder / "plan.new").write_text(json.dumps(plan))
        (self.folder / "plan.new").rename(self.folder / "plan.json")

    def phase_at(self, rollout: str, turn: int | None) -> Phase | None:
        """Of a gateway that has not been killed there yet."""
        plan = self._read()
        due = turn in plan["turns"].get(rollout, ()) and not self._mark("died", rollout, turn)
        return Phase(plan["phase"]) if due and plan["phase"] else None

    def holds(self, rollout: str, turn: int | None) -> bool:
        plan = self._read()
        if turn not in plan["turns"].get(rollout, ()):
            return False
        # On a busy machine a gateway is late to kill itself: the reply waits for that.
        if plan["phase"] == Phase.GENERATING:
            return not self._mark("died", rollout, turn)
        return not plan["phase"] and not self._mark("go", rollout, turn)

    def mark(self, what: str, rollout: str, turn: int | None) -> None:
        """`died`: a gateway, `held`: a reply waits, `go`: it waits no more."""
        self._path(what, rollout, turn).write_text(str(time.time()))

    def marked_at(self, what: str, rollout: str, turn: int | None) -> float | None:
        path = self._path(what, rollout, turn)
        return float(path.read_text() or 0) if path.exists() else None

    def note(self, log: str, **line: Any) -> None:
        """One line, whole also with several writers."""
        text = json.dumps(line | {"at": time.time()}) + "\n"
        place = os.open(self.folder / log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(place, text.encode())
        os.close(place)

    def notes(self, log: str) -> list[dict[str, Any]]:
        path = self.folder / log
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _read(self) -> dict[str, Any]:
        path = self.folder / "plan.json"
        return json.loads(path.read_text()) if path.exists() else {"turns": {}, "phase": None}

    def _mark(self, what: str, rollout: str, turn: int | None) -> bool:
        return self._path(what, rollout, turn).exists()

    def _path(self, what: str, rollout: str, turn: int | None) -> Path:
        return self.folder / f"{what}.{rollout.replace('/', '.')}.{turn}"
