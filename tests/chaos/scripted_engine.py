"""An OpenAI-compatible engine as a process of its own, so that a test can kill it.

    python -m tests.chaos.scripted_engine PORT

A reply depends on the conversation alone: the same evaluation gets the same patches, whatever is
killed. Tasks with an even number in their issue are fixed, the others are changed wrongly.
"""

import json
import re
import sys
import time
from http.server import ThreadingHTTPServer
from typing import Any

from tests.web_server import Answer

REPLY_S = 0.2
"""Long enough that a kill finds replies in flight."""
RIGHT, WRONG = "a + b", "a * b"


def command(turn: int, number: int) -> str:
    operation = WRONG if number % 2 else RIGHT
    return [
        "cat calc.py; sleep 0.3",
        rf"printf 'def add(a, b):\n    return {operation}\n' > calc.py; sleep 0.3",
        "git diff | head -20",
        "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
    ][turn]


def reply(messages: list[dict[str, str]]) -> str:
    found = re.search(r"task number (\d+)", "\n".join(each["content"] for each in messages))
    if found is None:
        return "ok"  # the command asks the endpoint something before it starts
    turn = sum(message["role"] == "assistant" for message in messages)
    return f"THOUGHT: turn {turn}\n\n```bash\n{command(turn, int(found[1]))}\n```"


class Handler(Answer):
    def do_POST(self) -> None:
        body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(REPLY_S)
        choice = {
            "message": {"role": "assistant", "content": reply(body["messages"])},
            "finish_reason": "stop",
        }
        data = json.dumps({"choices": [choice]}).encode()
        self.answer(data)


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
