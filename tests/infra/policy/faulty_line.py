"""A line to an engine that fails as told at one request, and a fake engine to put behind it."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import httpx

from tests.web_server import Answer, serving

TIMEOUT_S = 2.0
"""For so long the clients of tests with Fault.SLOW wait."""
SLOW_S = 3.5


class Fault(StrEnum):
    CUT_BEFORE = "cut before"
    """The connection closes, and the engine was not asked."""
    CUT_AFTER = "cut after"
    """The engine did it, and its answer is lost."""
    FAILS = "fails"
    """HTTP 500, and the engine was not asked."""
    SLOW = "slow"
    """The engine did it; its answer comes too late."""


@dataclass(slots=True)
class Line:
    url: str = ""
    faults: dict[str, Fault] = field(default_factory=dict)
    """By the path of the request."""
    left: dict[str, int] = field(default_factory=dict)
    """Number of further requests of each path that fail."""

    def fail(self, path: str, fault: Fault, times: int = 1) -> None:
        self.faults[path], self.left[path] = fault, times

    def heal(self) -> None:
        self.left.clear()

    def next_fault(self, path: str) -> Fault | None:
        if self.left.get(path, 0) <= 0:
            return None
        self.left[path] -= 1
        return self.faults[path]


@contextmanager
def line_to(engine: str) -> Iterator[Line]:
    line = Line()

    class Handler(Answer):
        def do_GET(self) -> None:
            self._pass_on(None)

        def do_POST(self) -> None:
            self._pass_on(self.rfile.read(int(self.headers["Content-Length"])))

        def _pass_on(self, body: bytes | None) -> None:
            fault = line.next_fault(self.path)
            if fault is Fault.FAILS:
                self._answer(500, b'{"error": {"message": "MemoryError"}}')
                return
            if fault is Fault.CUT_BEFORE:
                self.close_connection = True
                return
            answer = httpx.request(self.command, engine + self.path, content=body, timeout=60)
            if fault is Fault.SLOW:
                time.sleep(SLOW_S)
            if fault is not None:
                self.close_connection = True
                return
            self._answer(answer.status_code, answer.content)

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with serving(Handler) as address:
        line.url = f"http://{address}"
        yield line


@dataclass(slots=True)
class FakeEngine:
    """SGLang's answers where weights are loaded; no weights."""

    url: str = ""
    label: str = "0"
    paused: bool = False
    is_updating: bool = False
    is_lent: bool = False
    memory_saver: bool = True
    died_of: str = ""
    """What a real SGLang would have ended of."""
    adapters: list[str] = field(default_factory=list)

    def get(self, path: str) -> tuple[int, dict[str, Any]]:
        if path == "/ready":
            return (503 if self.paused else 200), {}
        if path == "/v1/models":
            return 200, {"data": [{"id": name} for name in self.adapters]}
        if path == "/server_info":
            info = {"tp_size": 1, "internal_states": [{"num_waiting_reqs": 3}]}
            return 200, info | {"enable_memory_saver": self.memory_saver}
        return 200, {"weight_version": self.label}

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        match path:
            case "/pause_generation":
                self.paused = True
            case "/continue_generation":
                if self.is_lent:
                    self.died_of = "generated without memory"
                self.paused = False
            case "/release_memory_occupation":
                if self.is_lent or not self.paused:
                    self.died_of = "gave memory away twice, or under requests"
                self.is_lent = True
            case "/resume_memory_occupation":
                if not self.is_lent:
                    self.died_of = "took memory twice"
                self.is_lent = False
            case "/update_weights_from_disk":
                self.label = body["weight_version"]
            case "/update_weight_version":
                self.label = body["new_version"]
            case "/load_lora_adapter":
                self.adapters.append(body["lora_name"])
            case "/begin_weight_update":
                if self.is_updating:
                    return 400, {"message": "already open"}
                self.is_updating = True
            case "/end_weight_update":
                if not self.is_updating:
                    return 400, {"message": "not open"}
                self.is_updating = False
            case _:
                pass
        return 200, {"success": True}


@contextmanager
def fake_engine() -> Iterator[FakeEngine]:
    engine = FakeEngine()

    class Handler(Answer):
        def do_GET(self) -> None:
            self._say(*engine.get(self.path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._say(*engine.post(self.path, body))

        def _say(self, status: int, content: dict[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with serving(Handler) as address:
        engine.url = f"http://{address}"
        yield engine
