"""An endpoint that plays the agent `tools` with a tool of one's own, as a process of its own.

    python -m tests.chaos.scripted_tools PORT

A reply depends on the conversation alone. Each call of the tool leaves a line in a file of the
sandbox, and the last command but one prints them: a call that ran twice, or not at all, shows.
"""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from mainspring.programs.request import ToolSpec
from tests.chaos.numbered import Completions, Message, number_in, serve

MARKS = 4
"""Calls of the tool, two in each of the first replies."""


class Mark:
    """The tool: named as "tests.chaos.scripted_tools:Mark"."""

    spec = ToolSpec(
        name="mark",
        description="Leave a line.",
        parameters={
            "type": "object",
            "properties": {"text": {"type": "string"}},
            "required": ["text"],
        },
    )

    def command(self, arguments: Mapping[str, Any]) -> str:
        return f"echo {shlex.quote(arguments['text'])} >> /tmp/marks; sleep 0.3; wc -l < /tmp/marks"


def calls_of(turn: int) -> list[tuple[str, dict[str, str]]]:
    if turn < MARKS // 2:
        return [("mark", {"text": f"mark{n}"}) for n in (2 * turn, 2 * turn + 1)]
    return [
        ("edit", {"path": "calc.py", "old": "a - b", "new": "a + b"}),
        ("bash", {"command": "cat /tmp/marks"}),
        ("submit", {}),
    ][turn - MARKS // 2 : turn - MARKS // 2 + 1]


class Handler(Completions):
    def message(self, messages: list[Message]) -> Message:
        if number_in(messages) is None:
            return {"content": "ok"}
        turn = sum(each["role"] == "assistant" for each in messages)
        calls = [
            {
                "id": f"c{turn}{n}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for n, (name, arguments) in enumerate(calls_of(turn))
        ]
        return {"content": f"Turn {turn}.", "tool_calls": calls}


if __name__ == "__main__":
    serve(Handler)
