"""Fields that a task of every kind has. The kind tells which environment plays it.

Invariants: a task is pure data, never changes under its id, and names no code; its field `kind`
and what the kind needs beside this stand in `swe_task` and `own_task`, read by `any_task`.
"""

import hashlib
import json
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from mainspring.ids import TaskId


class Task(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    id: TaskId
    source: str
    """Where it came from: "bundled", a data set's name, a file."""
    split: str
    """"train", "heldout", "heldout_templates", or the data set's own."""
    issue: str
    """The problem statement shown to the agent."""
    test_timeout_s: float = Field(default=30.0, gt=0)
    """Time that grading may take: of the hidden tests, where it runs tests."""
    agent_name: str | None = None
    """The agent that the task's row asks for, of mainspring.agents.choice.AGENTS; None: the
    campaign's."""
    tools: tuple[str, ...] = ()
    """The tools that the task's row asks for, in the place of `agent.tools`; empty: those."""
    metadata: dict[str, str] = Field(default_factory=dict)

    def asking_for(self, agent: str | None) -> Self:
        """The task as a set has it whose tasks are played by `agent` unless their row names
        another one; None: as its row is."""
        if agent is None or self.agent_name:
            return self
        return self.model_copy(update={"agent_name": agent})

    @property
    def content_hash(self) -> str:
        """sha256 over everything but the id: equal hashes mean equal tasks, in whatever order
        their fields and keys were written."""
        # Fields at their defaults do not count: a field that is added later changes no hash.
        fields = type(self).model_fields
        at_default = {
            name
            for name, field in fields.items()
            if getattr(self, name) == field.get_default(call_default_factory=True)
        }
        content = self.model_dump(mode="json", exclude={"id"} | at_default)
        # Escaped: a text may hold what no encoding has (lone surrogates).
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()
