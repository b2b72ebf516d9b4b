"""The seam between a tool call and the command that does it in the sandbox.

- A tool is pure: made anew wherever it is needed, from nothing, so the same call gives the same
  command after a crash. The command runs once, as every command of an agent.
- Arguments come as JSON that the tool's schema has accepted. What the schema cannot tell is
  `Misused`: the policy is told, nothing runs, and it costs a turn.
- Arguments are the policy's text, and hostile: quote them (`shlex.quote`).
- A tool that needs no sandbox may run in Python instead: see `python`.

Implemented beside this file and by tools of your own (docs/extending.md); `choice` finds them.
"""

import json
from collections.abc import Mapping
from typing import Any, Protocol

from jsonschema import Draft202012Validator

from mainspring.programs.request import ToolCall, ToolSpec


class Misused(ValueError):
    """Arguments that the tool cannot take, in words for the policy."""


class Tool(Protocol):
    spec: ToolSpec
    """Name, description and JSON schema of the arguments, as the policy is shown them."""

    def command(self, arguments: Mapping[str, Any]) -> str:
        """The bash command that does it, in the task's working directory. Raises Misused."""
        ...


def command_of(tool: Tool, call: ToolCall) -> str:
    """The command that a call asks for. Raises Misused."""
    return tool.command(arguments_of(tool.spec, call))


def arguments_of(spec: ToolSpec, call: ToolCall) -> dict[str, Any]:
    """Those of a call, which the tool's schema accepts. Raises Misused."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        raise Misused(f"the arguments of {call.name} are no JSON object") from None
    if not isinstance(arguments, dict):
        raise Misused(f"the arguments of {call.name} are no JSON object")
    wrong = next(Draft202012Validator(spec.parameters).iter_errors(arguments), None)
    if wrong is not None:
        where = ".".join(map(str, wrong.absolute_path))
        raise Misused(f"{call.name}: {f'{where}: ' if where else ''}{_short(wrong.message)}")
    return arguments


def text_in(spec: ToolSpec, arguments: Mapping[str, Any]) -> str:
    """The text of a tool that takes one alone, without NUL and without blanks around it. Raises
    Misused where nothing is left."""
    name = only_text(spec)
    assert name is not None, f"{spec.name} takes more than a text"
    text = arguments[name].replace("\0", "").strip()
    if not text:
        raise Misused(f"{spec.name}: the {name} is empty")
    return text


def only_text(spec: ToolSpec) -> str | None:
    """The argument that a plain text can stand for: the only required one, if it is a text."""
    required = spec.parameters.get("required", [])
    if len(required) != 1:
        return None
    schema = spec.parameters.get("properties", {}).get(required[0], {})
    return required[0] if schema.get("type") == "string" else None


def _short(message: str, limit: int = 200) -> str:
    return message if len(message) <= limit else f"{message[: limit - 3]}..."
