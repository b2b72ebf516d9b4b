"""Commands and steps by their ids, each run once: a second attempt gets the result of the first.

Invariants: a caller that is cancelled ends nothing, as another attempt may ask for the result; an
error that no caller is left to get counts as retrieved. Used by sandboxes and by worlds.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from mainspring.environments.protocol import CommandResult


class RunOnce:
    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[CommandResult]] = {}

    async def result(
        self, ident: str, run: Callable[[], Coroutine[Any, Any, CommandResult]]
    ) -> CommandResult:
        """The result under this id; `run` is called if there is none under way or made. Raises
        what it raises."""
        task = self._tasks.get(ident)
        if task is None:
            task = asyncio.create_task(run())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._tasks[ident] = task
        return await asyncio.shield(task)

    def task(self, ident: str) -> asyncio.Task[CommandResult]:
        """The task of an id that was run."""
        return self._tasks[ident]

    def cancel(self) -> None:
        """End all that are under way."""
        for task in self._tasks.values():
            task.cancel()
