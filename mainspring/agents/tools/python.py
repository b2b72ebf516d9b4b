"""Tools that run in Python beside the sandbox, in a process of the rollout's own. Pure.

Invariants: a call of one is a line that the world of the rollout tells from commands of a shell,
for which it is a comment; the policy may as well write that line as a command, so the arguments are
checked again where the tool runs. Imported by `choice`, and by what runs the tools.
"""

import json
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from mainspring.ids import RolloutId
from mainspring.programs.request import ToolCall, ToolSpec
from mainspring.tasks.any_task import AnyTask

MARK = "#tool "
"""Beginning of a command that is a call of the tool that it names, if the rollout has that one."""


@runtime_checkable
class PythonTool(Protocol):
    """A tool that answers its calls in Python. It may remember what its rollout did with it: when
    its process is lost another one is made, and the recorded calls run again."""

    spec: ToolSpec
    """Name, description and JSON schema of the arguments, as the policy is shown them."""

    async def create(self, task: AnyTask, rollout: RolloutId) -> None:
        """Called once, before the first call. The task is without its hidden tests and its fix."""
        ...

    async def execute(self, arguments: Mapping[str, Any]) -> str:
        """The output that the policy is told: the same one for the same calls in the same order.
        Raises Misused, whose words the policy is told, and WorldLost: then all calls run again in
        another process."""
        ...

    async def release(self) -> None:
        """Called once, at the end of the rollout, unless the process was lost before."""
        ...


PYTHON_METHODS = ("create", "execute", "release")


class PythonCall:
    """Implements `Tool` for one that runs in Python."""

    def __init__(self, spec: ToolSpec) -> None:
        self.spec = spec

    def command(self, arguments: Mapping[str, Any]) -> str:
        # Escaped: the call stays one line, whatever its texts hold.
        return f"{MARK}{self.spec.name} {json.dumps(arguments)}"


def called_in(command: str) -> ToolCall | None:
    """The call that a command is; None: it is one of a shell."""
    if not command.startswith(MARK):
        return None
    name, _, arguments = command.removeprefix(MARK).partition(" ")
    return ToolCall(name=name, arguments=arguments)
