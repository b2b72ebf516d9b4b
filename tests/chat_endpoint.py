"""An OpenAI-compatible endpoint of this machine: what its script holds, then what `reply` says."""

import json
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from tests.web_server import Answer, serving

CONTEXT_FULL = {
    "error": {
        "message": "This model's maximum context length is 8192 tokens.",
        "code": "context_length_exceeded",
    }
}
Messages = list[dict[str, Any]]
Said = str | dict[str, Any]
"""A reply's text, or its message."""


def calling(name: str, arguments: str, **beside: Any) -> dict[str, Any]:
    """A message that calls a tool."""
    call = {"id": "x", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call], **beside}


def completion(message: dict[str, Any], finish_reason: str = "stop", **beside: Any) -> object:
    return {"choices": [{"message": message, "finish_reason": finish_reason}], **beside}


@dataclass(slots=True)
class Endpoint:
    reply: Callable[[Messages], Said] = lambda messages: "ok"
    script: deque[tuple[int, dict[str, str], object]] = field(default_factory=deque)
    """Status, headers and JSON body of the next answers. A Content-Length of its own cuts one."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of the requests."""
    keys: list[str | None] = field(default_factory=list)
    url: str = ""

    def answer(self, path: str, key: str | None, body: dict[str, Any]) -> tuple[int, dict, object]:
        self.asked.append(body)
        self.keys.append(key)
        if path != "/v1/chat/completions":
            return 404, {}, {"detail": "Not Found"}
        if self.script:
            return self.script.popleft()
        said = self.reply(body["messages"])
        message = {"role": "assistant", "content": said} if isinstance(said, str) else said
        num_prompt = sum(len((each["content"] or "").split()) for each in body["messages"])
        num_reply = len((message["content"] or "").split())
        usage = {"prompt_tokens": num_prompt, "completion_tokens": num_reply}
        return 200, {}, completion(message, usage=usage)


@contextmanager
def chat_endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()

    class Handler(Answer):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, headers, said = endpoint.answer(self.path, self.headers["Authorization"], body)
            data = said.encode() if isinstance(said, str) else json.dumps(said).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.close_connection = "Content-Length" in headers
            with suppress(ConnectionError):  # who asked may have been killed
                self.end_headers()
                self.wfile.write(data)

    with serving(Handler) as address:
        endpoint.url = f"http://{address}/v1"
        yield endpoint
