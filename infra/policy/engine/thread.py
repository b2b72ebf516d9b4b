"""The engine thread: the only one that touches the scheduler, the model and the KV cache.

Everybody else posts calls, which run between two steps. A step that raises ends the thread:
requests in flight and all later ones get EngineFailed, and /health says so.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import structlog
import torch

from infra.policy.engine.scheduler import Scheduler
from mainspring.errors import EngineError

Result = TypeVar("Result")
_log = structlog.get_logger(__name__)


class EngineFailed(EngineError):
    """The engine thread has died; restart the engine."""


class EngineThread:
    def __init__(self, scheduler: Scheduler, *, num_threads: int) -> None:
        self._scheduler = scheduler
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

    def _run(self) -> None:
        torch.set_num_threads(self._num_threads)
        while self._serve_inbox():
            if not self._scheduler.busy or self.failure is not None:
                continue
            try:
                self._scheduler.step()
            except Exception as error:
                _log.exception("the policy engine failed")
                self.failure = EngineFailed(
                    f"the policy engine failed: {error!r}", remedy="restart it; see its log"
                )
                self._scheduler.fail(self.failure)

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
