"""The process that the tools of one rollout live in, as its node sees it.

Invariants: it is started at the first call, and again after a call that reached its time limit:
that ends the process, as it would end a command. A process that ended by itself is lost with all
that the tools remember, and so is its world. One call at a time. Used by worlds with such tools.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.functions.messages import Start
from infra.functions.process import FunctionProcess, running
from infra.functions.tool_player import PATH, CallEnd
from mainspring.environments.protocol import CommandResult, EnvironmentBroken, WorldLost
from mainspring.ids import RolloutId
from mainspring.programs.functions import visible
from mainspring.programs.request import ToolCall
from mainspring.tasks.any_task import AnyTask

START_S = 120.0
"""For the process alone; to create a tool is part of its first call."""
RELEASE_S = 10.0
"""Tools that take longer to release are ended as they are."""


@dataclass(frozen=True, slots=True)
class ToolSet:
    """Tools of a rollout, and for whom they run."""

    task: AnyTask
    rollout: RolloutId
    paths: Mapping[str, str]
    """By the names that the policy calls."""
    variables: Sequence[str]
    """Variables of the node's environment that they get."""
    memory_mb: int
    output_bytes: int
    """Kept of one call's output."""


class ToolProcess:
    def __init__(self, tools: ToolSet, label: str, folder: Path) -> None:
        """`label`, `folder`: as `process.running` takes them."""
        self._tools = tools
        self._label = label
        self._folder = folder
        self._one_call = asyncio.Lock()
        self._is_cut_off = False
        self._running: AsyncExitStack | None = None
        self._ended: asyncio.Task[Any] | None = None
        self._asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def call(self, call: ToolCall, timeout_s: float) -> CommandResult:
        """Result of the call. Raises WorldLost and EnvironmentBroken."""
        async with self._one_call:
            ended = self._ended or await self._start()
            said = asyncio.create_task(self._exchange(call))
            try:
                await asyncio.wait(
                    (said, ended), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
                )
            except asyncio.CancelledError:
                said.cancel()
                self._is_cut_off = True
                raise
            if said.done():
                return self._result(call.name, said.result())
            said.cancel()
            if ended.done():
                await self.close()
                raise WorldLost(
                    f"rollout {self._tools.rollout}: the process of its tools ended in a call of "
                    f"{call.name}: it {ended.result().error}"
                )
            await self.close()
            return CommandResult(-1, b"", timed_out=True)

    async def release(self) -> None:
        """Release the tools, then end the process. One whose call was cut off is ended as it is:
        it would answer nothing."""
        async with self._one_call:
            if self._ended is not None and not self._is_cut_off:
                self._asked.put_nowait({})
                await asyncio.wait((self._ended,), timeout=RELEASE_S)
            await self.close()

    async def close(self) -> None:
        """End it as it is. Closing twice is fine."""
        running, ended = self._running, self._ended
        self._running = self._ended = None
        if ended is not None:
            ended.cancel()
        if running is not None:
            await asyncio.shield(running.aclose())

    async def _start(self) -> "asyncio.Task[Any]":
        self._asked, self._said = asyncio.Queue(), asyncio.Queue()
        tools = self._tools
        start = Start(
            path=PATH,
            task=visible(tools.task).model_dump(mode="json"),
            model_url="",
            key="",
            options={"tools": dict(tools.paths), "output_bytes": tools.output_bytes},
            rollout=tools.rollout,
            life=0,
            has_sandbox=True,
            memory_mb=tools.memory_mb,
        )
        self._running = AsyncExitStack()
        process: FunctionProcess = await self._running.enter_async_context(
            running(start, tools.variables, self._label, self._folder, self._take)
        )
        self._ended = asyncio.create_task(process.ended())
        begun = asyncio.create_task(self._said.get())  # it asks for the first call
        await asyncio.wait(
            (begun, self._ended), timeout=START_S, return_when=asyncio.FIRST_COMPLETED
        )
        if begun.done():
            return self._ended
        begun.cancel()
        how = self._ended.result().error if self._ended.done() else f"took more than {START_S:g} s"
        await self.close()
        raise WorldLost(
            f"rollout {tools.rollout}: the process of its tools did not start: it {how}"
        )

    async def _take(self, number: int, said: str, timeout_s: float | None) -> CommandResult:
        """It tells what came of the last call, and gets the next one."""
        self._said.put_nowait(json.loads(said))
        return CommandResult(0, json.dumps(await self._asked.get()).encode())

    async def _exchange(self, call: ToolCall) -> dict[str, Any]:
        self._asked.put_nowait(call.model_dump(mode="json"))
        return await self._said.get()

    def _result(self, name: str, said: Mapping[str, Any]) -> CommandResult:
        text, truncated = said["text"], said["truncated"]
        match CallEnd(said["outcome"]):
            case CallEnd.ANSWERED:
                return CommandResult(0, text.encode(), truncated)
            case CallEnd.MISUSED:
                return CommandResult(2, text.encode(), truncated)
            case CallEnd.LOST:
                raise WorldLost(f"rollout {self._tools.rollout}, tool {name!r}: {text}")
            case CallEnd.BROKEN:
                raise EnvironmentBroken(
                    f"tool {name!r}: {text}",
                    remedy="correct the class on every sandbox node, then start the campaign "
                    "again; what the policy should be told is raised as Misused",
                )
