"""A tool that runs in Python: the policy's list of what is to be done. It remembers the list."""

from collections.abc import Mapping
from typing import Any

from mainspring.agents.tools.protocol import Misused
from mainspring.ids import RolloutId
from mainspring.programs.request import ToolSpec
from mainspring.tasks.any_task import AnyTask


class Checklist:
    spec = ToolSpec(
        name="checklist",
        description="Add an entry to your list of what is to be done, or mark one as done.",
        parameters={
            "type": "object",
            "properties": {
                "add": {"type": "string", "minLength": 1, "description": "An entry to add."},
                "done": {"type": "integer", "minimum": 1, "description": "Number of an entry."},
            },
            "additionalProperties": False,
        },
    )

    async def create(self, task: AnyTask, rollout: RolloutId) -> None:
        self.entries = [f"[ ] Understand: {task.issue.splitlines()[0]}"]

    async def execute(self, arguments: Mapping[str, Any]) -> str:
        if "add" in arguments:
            self.entries.append(f"[ ] {arguments['add']}")
        if "done" in arguments:
            place = arguments["done"] - 1
            if place >= len(self.entries):
                raise Misused(f"checklist: there is no entry {place + 1}")
            self.entries[place] = f"[x]{self.entries[place][3:]}"
        return "\n".join(f"{number}. {entry}" for number, entry in enumerate(self.entries, 1))

    async def release(self) -> None:
        self.entries.clear()
