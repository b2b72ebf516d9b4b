"""A server with SGLang's answers that fails as told: for what no real engine does on demand."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.web_server import Answer, serving

REPLY = {
    "output_ids": [7],
    "meta_info": {
        "output_token_logprobs": [[-0.5, 7, None]],
        "finish_reason": {"type": "stop", "matched": 7},
        "weight_versions": [{"version": "0", "start": 0, "end": 1}],
        "weight_version": "0",
        "e2e_latency": 0.1,
    },
}


@dataclass(slots=True)
class EngineStub:
    url: str = ""
    status: int = 200
    closes: bool = False
    """The connection, under every reply that it is asked for."""
    closes_after_a_token: bool = False
    """The same, with the first token streamed."""
    reply: dict[str, Any] = field(default_factory=lambda: dict(REPLY))
    info: dict[str, Any] = field(default_factory=lambda: {"weight_version": "0"})
    on_update: Callable[[dict[str, Any]], dict[str, Any]] = lambda body: {}
    """What of `info` changes with an update of the weights."""
    posted: dict[str, Any] = field(default_factory=dict)
    """The answer to any other POST."""
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Path and body of the requests."""


@contextmanager
def engine_stub() -> Iterator[EngineStub]:
    stub = EngineStub()

    class Handler(Answer):
        def do_GET(self) -> None:
            stub.asked.append((self.path, {}))
            self.answer(json.dumps(stub.info).encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            stub.asked.append((self.path, body))
            if self.path == "/update_weights_from_disk":
                stub.info |= stub.on_update(body)
            if self.path != "/generate":
                self.answer(json.dumps(stub.posted).encode())
            elif stub.closes_after_a_token:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                so_far = stub.reply | {
                    "meta_info": stub.reply["meta_info"] | {"finish_reason": None}
                }
                piece = f"data: {json.dumps(so_far)}\n\n".encode()
                self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                self.close_connection = True
            elif stub.closes:
                self.close_connection = True
            elif stub.status != 200:
                self.send_error(stub.status)
            else:
                self.answer(json.dumps(stub.reply).encode())

    with serving(Handler) as address:
        stub.url = f"http://{address}"
        yield stub
