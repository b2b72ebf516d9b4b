"""A whole policy engine in this process: model, engine thread and HTTP server.

Imported by `mainspring serve`; tests run it in a thread. `serve` returns after SIGINT or SIGTERM.
"""

from pathlib import Path

import torch
import uvicorn
from pydantic import BaseModel, ConfigDict, Field

from engine.app import make_app
from engine.model import self_test
from engine.model.served_model import ServedModel
from engine.scheduler import Scheduler
from engine.thread import EngineThread
from infra.tcp import listen

SHUTDOWN_TIMEOUT_S = 5
"""Requests still open then are cut; their clients go to another engine."""
KEEPALIVE_S = 75
"""Longer than clients keep idle connections, so that none is closed under a request."""


class EngineOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Path
    host: str = "127.0.0.1"
    port: int = Field(30000, ge=0, le=65535)
    """0 takes a free one."""
    weight_version: str = "0"
    max_batch: int | None = Field(None, ge=1)
    """None: what memory allows, at most MAX_BATCH."""
    threads: int = Field(1, ge=1)
    step_interval_s: float = Field(0.0, ge=0)
    """Least time between two steps."""
    context_length: int | None = Field(None, ge=2)
    """None: the model's own."""
    api_key: str = ""
    device: str = "cpu"
    """Or "cuda", or "auto": a GPU where there is one."""
    reproducible: bool = False
    """A reply's bits depend on its own request alone; tested before it is served."""


class EngineServer:
    """Raises ModelError or ServiceError when made; serves until `should_exit`."""

    def __init__(self, options: EngineOptions) -> None:
        model = ServedModel(
            options.model,
            options.context_length,
            is_reproducible=options.reproducible,
            device=options.device,
        )
        if options.reproducible:
            torch.set_num_threads(options.threads)  # as in the engine's thread
            self_test.check(model)
        self.context_length = model.context_length
        self.device = str(model.device)
        self.max_batch = options.max_batch or model.shape().fitting_batch()
        scheduler = Scheduler(
            model, weight_version=options.weight_version, max_batch=self.max_batch
        )
        self._socket = listen(options.host, options.port)
        self.url = f"http://{options.host}:{self._socket.getsockname()[1]}"
        self._engine = EngineThread(
            scheduler, num_threads=options.threads, step_interval_s=options.step_interval_s
        )
        app = make_app(self._engine, scheduler, api_key=options.api_key)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_keep_alive=KEEPALIVE_S,
            timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
        )
        self._uvicorn = uvicorn.Server(config)

    def serve(self) -> None:
        self._engine.start()
        try:
            self._uvicorn.run(sockets=[self._socket])
        finally:
            self._engine.stop()
            self._socket.close()

    def shut_down(self) -> None:
        """Ask `serve` to return, from any thread."""
        self._uvicorn.should_exit = True
