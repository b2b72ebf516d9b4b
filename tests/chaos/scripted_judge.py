"""A judge behind an OpenAI-compatible endpoint, as a process of its own, so that tests can kill it.

    python -m tests.chaos.scripted_judge PORT LOG

A vote depends on the prompt alone. LOG gets a line when an answer is sent: the prompt's digest.
"""

import hashlib
import sys
from pathlib import Path

from tests.chaos.numbered import Completions, Message, serve

REPLY_S = 0.5
"""Long enough that a kill finds votes in flight."""


def digest(prompt: str) -> str:
    return hashlib.sha256(prompt.encode()).hexdigest()


class Handler(Completions):
    reply_s = REPLY_S

    def message(self, messages: list[Message]) -> Message:
        prompt = messages[-1]["content"]
        vote = 1 if int(digest(prompt), 16) % 2 else -1
        with Path(sys.argv[2]).open("a") as log:
            log.write(f"{digest(prompt)}\n")
        return {"content": rf"\boxed{{{vote}}}"}


if __name__ == "__main__":
    serve(Handler)
