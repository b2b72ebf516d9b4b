"""An endpoint that plays the agent `tools` with a tool of one's own, as a process of its own.

    python -m tests.chaos.scripted_tools PORT

A reply depends on the conversation alone. Each call of the tool leaves a line in a file of the
sandbox, and the last command but one prints them: a call that ran twice, or not at all, shows.
"""

import json
import re
import shlex
import sys
import time
from collections.abc import Mapping
from http.server import ThreadingHTTPServer
from typing import Any

from mainspring.programs.request import ToolSpec
from tests.web_server import Answer

REPLY_S = 0.2
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


class Handler(Answer):
    def do_POST(self) -> None:
        body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(REPLY_S)
        messages = body["messages"]
        asked = "\n".join(str(each.get("content")) for each in messages)
        message: dict[str, Any] = {"role": "assistant", "content": "ok"}
        if re.search(r"task number \d+", asked):
            turn = sum(each["role"] == "assistant" for each in messages)
            calls = [
                {
                    "id": f"c{turn}{n}",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(arguments)},
                }
                for n, (name, arguments) in enumerate(calls_of(turn))
            ]
            message = {"role": "assistant", "content": f"Turn {turn}.", "tool_calls": calls}
        choice = {"message": message, "finish_reason": "stop"}
        data = json.dumps({"choices": [choice]}).encode()
        self.answer(data)


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
