"""Engines as processes: `mainspring serve`, and vLLM and SGLang from environments of their own.

Those two are installed by `make engines` (`.ci/engines`), below `FOLDER`; tests skip where they are
not.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest

from infra.policy.engines.client import EngineClient
from infra.policy.engines.dialects.choice import dialect_of
from infra.policy.engines.vllm_command import command_of
from mainspring.status import PolicyApi
from tests.infra.policy.engines import COMMAND

FOLDER = Path(os.environ.get("MAINSPRING_TEST_ENGINES", Path.home() / ".cache/mainspring/engines"))
SHIM = Path(__file__).with_name("sglang_cpu")
KINDS = ("mainspring", "vllm", "sglang")
CONTEXT = 2048
START_S = 300.0
"""vLLM is ready after 25 to 100 s, more where the machine is busy."""
MAX_BATCH = 8
ABORTS: dict[str, tuple[str, dict[str, object]]] = {
    "mainspring": ("/abort_request", {"abort_all": True}),
    "sglang": ("/abort_request", {"abort_all": True}),
    "vllm": ("/abort_requests", {}),
}
"""What an operator would send to have all replies end."""


@dataclass(slots=True)
class RealEngine:
    kind: str
    model: Path
    port: int
    log: Path
    extra: list[str] = field(default_factory=list)
    context: int = CONTEXT
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def api(self) -> PolicyApi:
        return PolicyApi.VLLM if self.kind == "vllm" else PolicyApi.SGLANG

    def client(self, model: Path | None = None, *, trained_at: float = 1.0) -> EngineClient:
        dialect = dialect_of(self.api, trained_at=trained_at)
        return EngineClient([self.url], model=model, dialect=dialect, timeout_s=120.0)

    def start(self) -> None:
        arguments, environment = self._command()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                arguments, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        self._wait()

    def kill(self) -> None:
        """All its processes at once, as where a machine dies."""
        if self._process is not None:
            with suppress(ProcessLookupError):  # it has ended by itself
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _wait(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            assert self._process.poll() is None, f"it ended: {self.log.read_text()[-3000:]}"
            with suppress(httpx.TransportError):  # not yet
                if httpx.get(self.url + "/health", timeout=5.0).status_code == 200:
                    return self._favour_the_server()
            time.sleep(0.5)
        raise AssertionError(f"{self.kind} did not come up: {self.log.read_text()[-3000:]}")

    def _favour_the_server(self) -> None:
        """vLLM generates in a process of its own, beside which its server comes to nothing where
        there are few cores: the pieces of a reply are all told at its end."""
        if self.kind == "vllm" and self._process is not None:
            for child in psutil.Process(self._process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess, ProcessLookupError):
                    for thread in child.threads():  # Linux has a priority for each
                        os.setpriority(os.PRIO_PROCESS, thread.id, 10)

    def _command(self) -> tuple[list[str], dict[str, str]]:
        python = str(FOLDER / self.kind / "bin/python")
        if self.kind == "vllm":
            # A small share: what it takes for a limit is what must be free when it starts.
            extra = ["--dtype", "float32", "--enforce-eager", "--gpu-memory-utilization", "0.1"]
            command = command_of(
                python,
                model=self.model,
                host="127.0.0.1",
                port=self.port,
                max_batch=MAX_BATCH,
                context_length=self.context,
                extra=extra + self.extra,
            )
            cpu = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
            return command.arguments, command.environment | cpu | {"PYTHONPATH": ""}
        shared = [
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--context-length",
            str(self.context),
        ]
        if self.kind == "mainspring":
            arguments = ["serve", "--no-restart", "--model", str(self.model), *shared]
            arguments += self.extra
            return [sys.executable, "-c", COMMAND, *arguments], dict(os.environ)
        cpu = {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        arguments = ["--model-path", str(self.model), *shared, "--device", "cpu"]
        arguments += ["--attention-backend", "torch_native", "--sampling-backend", "pytorch"]
        arguments += ["--grammar-backend", "none", "--disable-overlap-schedule"]
        arguments += ["--mem-fraction-static", "0.5", "--max-total-tokens", "16384"]
        arguments += ["--max-running-requests", str(MAX_BATCH), "--dtype", "float32"]
        arguments += ["--stream-interval", "32", "--incremental-streaming-output"]
        environment = dict(os.environ) | cpu | {"PYTHONPATH": str(SHIM)}
        return [python, "-m", "sglang.launch_server", *arguments, *self.extra], environment


def skip_without(kind: str) -> None:
    if kind != "mainspring" and not (FOLDER / kind / ".installed").exists():
        pytest.skip(f"{kind} is not installed in {FOLDER}: make test-{kind}")


@contextmanager
def started(
    kind: str, model: Path, log: Path, *extra: str, context: int = CONTEXT
) -> Iterator[RealEngine]:
    skip_without(kind)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    engine = RealEngine(kind, model, port, log, list(extra), context)
    try:
        engine.start()
        yield engine
    finally:
        engine.kill()
