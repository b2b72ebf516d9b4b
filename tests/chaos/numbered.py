"""Tasks with a number in their issue, and the endpoint that plays them: its reply depends on the
conversation alone. Run as processes of their own by the tests that kill them."""

import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from http.server import ThreadingHTTPServer
from typing import Any

from mainspring.ids import TaskId
from mainspring.tasks.swe_task import SweTask
from tests.web_server import Answer

REPLY_S = 0.2
"""Long enough that a kill finds replies in flight."""
Message = dict[str, Any]


def numbered_tasks(source: str, num_tasks: int) -> list[SweTask]:
    return [
        SweTask(
            id=TaskId(f"{source}-{number}"),
            source=source,
            split="test",
            issue=f"add subtracts (task number {number})",
            files={"calc.py": "def add(a, b):\n    return a - b\n"},
            tests={"hidden_test.py": "from calc import add\nassert add(2, 3) == 5\n"},
            test_command="python3 hidden_test.py",
        )
        for number in range(num_tasks)
    ]


def number_in(messages: Sequence[Mapping[str, Any]]) -> int | None:
    """The task's; None: of another question, as a command asks before it starts."""
    text = "\n".join(str(each.get("content")) for each in messages)
    found = re.search(r"task number (\d+)", text)
    return None if found is None else int(found[1])


class Completions(Answer):
    reply_s = REPLY_S

    def message(self, messages: list[Message]) -> Message:
        """The reply to a conversation."""
        raise NotImplementedError

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(self.reply_s)
        said = {"role": "assistant", **self.message(body["messages"])}
        choice = {"message": said, "finish_reason": "stop"}
        self.answer(json.dumps({"choices": [choice]}).encode())


def serve(handler: type[Completions]) -> None:
    """Until it is killed, at the port that the command names."""
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), handler).serve_forever()
