"""The engine thread: the only one that touches the scheduler, the model and the KV cache.

Everybody else posts calls, which run between two steps. A step that raises ends the thread:
requests in flight and all later ones get EngineFailed, and /health reports it.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import structlog
import torch

from engine.scheduler import Scheduler
from mainspring.errors import EngineError

Result = TypeVar("Result")
_log = structlog.get_logger(__name__)


class EngineFailed(EngineError):
    """The engine thread has died; restart the engine."""


class EngineThread:
    def __init__(
        self, scheduler: Scheduler, *, num_threads: int, step_interval_s: float = 0.0
    ) -> None:
        """`step_interval_s`: least time from one step to the next. A tiny model's step costs the
        same for one request as for eight; pacing lets more requests share it and leaves the cores
        to others meanwhile."""
        self._scheduler = scheduler
        self._step_interval_s = step_interval_s
        self._num_threads = num_threads
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="policy-engine", daemon=True)
        self.failure: EngineFailed | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Requests in flight are aborted."""
        self._inbox.put(None)
        self._thread.join()

    @property
    def healthy(self) -> bool:
        return self.failure is None and self._thread.is_alive()

    async def call(self, function: Callable[[Scheduler], Result]) -> Result:
        """Run `function` on the engine thread, between two steps."""
        future: Future[Result] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            if self.failure is not None:
                future.set_exception(self.failure)
                return
            try:
                future.set_result(function(self._scheduler))
            except Exception as error:
                future.set_exception(error)

        self._inbox.put(run)
        return await asyncio.wrap_future(future)

    def post(self, function: Callable[[Scheduler], object]) -> None:
        """Like `call`, for those who cannot wait: a task that is being cancelled."""

        def run() -> None:
            if self.failure is None:
                function(self._scheduler)

        self._inbox.put(run)

    def _run(self) -> None:
        torch.set_num_threads(self._num_threads)
        while self._serve_inbox():
            if not self._scheduler.busy or self.failure is not None:
                continue
            began = time.monotonic()
            try:
                self._scheduler.step()
            except Exception as error:
                _log.exception("the policy engine failed")
                self.failure = EngineFailed(
                    f"the policy engine failed: {error!r}", remedy="restart it; see its log"
                )
                self._scheduler.fail(self.failure)
            left_s = self._step_interval_s - (time.monotonic() - began)
            if left_s > 0:
                time.sleep(left_s)

    def _serve_inbox(self) -> bool:
        """Run what was posted, waiting for something when there is no other work. False: stop."""
        block = not self._scheduler.busy or self.failure is not None
        while True:
            try:
                posted = self._inbox.get(block=block)
            except queue.Empty:
                return True
            if posted is None:
                self._scheduler.abort(lambda sequence: True)
                return False
            posted()
            block = False
