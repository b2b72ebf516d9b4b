"""A judge behind an OpenAI-compatible endpoint, as a process of its own, so that tests can kill it.

    python -m tests.chaos.scripted_judge PORT LOG

A vote depends on the prompt alone. LOG gets a line when an answer is sent: the prompt's digest.
"""

import hashlib
import json
import sys
import time
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.web_server import Answer

REPLY_S = 0.5
"""Long enough that a kill finds votes in flight."""


def digest(prompt: str) -> str:
    return hashlib.sha256(prompt.encode()).hexdigest()


class Handler(Answer):
    def do_POST(self) -> None:
        body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(REPLY_S)
        prompt = body["messages"][-1]["content"]
        vote = 1 if int(digest(prompt), 16) % 2 else -1
        choice = {"message": {"role": "assistant", "content": rf"\boxed{{{vote}}}"}}
        data = json.dumps({"choices": [choice | {"finish_reason": "stop"}]}).encode()
        with Path(sys.argv[2]).open("a") as log:
            log.write(f"{digest(prompt)}\n")
        self.answer(data)


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
