"""SGLang's routes that change the served weights, from files or over a process group.

Invariants: half-received weights are never served: a request that comes while an update is open
waits for its end. An update that fails, or whose sender is silent for SILENCE_S, is over: the
engine generates again under the weights that it had, and their label. An update is open until its
weights get a label. Only a paused engine begins one (SGLang also waits for its requests by itself).
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.bodies import (
    BeginBody,
    BucketBody,
    EndBody,
    JoinBody,
    LeaveBody,
    UpdateBody,
    VersionBody,
    parse,
)
from engine.received_weights import ReceivedWeights, WeightsNotReceived
from engine.scheduler import Scheduler
from engine.thread import EngineThread
from mainspring.errors import ModelError

SILENCE_S = 60.0
"""From one request of an open update to the next."""


class UpdateRoutes:
    def __init__(self, engine: EngineThread) -> None:
        self._engine = engine
        self._received = ReceivedWeights()
        self._one_at_a_time = asyncio.Lock()
        self._silence: asyncio.TimerHandle | None = None

    def table(self) -> list[Route]:
        routes: dict[str, Callable[[Request], Coroutine[Any, Any, Response]]] = {
            "/update_weights_from_disk": self.from_disk,
            "/update_weight_version": self.version,
            "/init_weights_update_group": self.join,
            "/destroy_weights_update_group": self.leave,
            "/begin_weight_update": self.begin,
            "/update_weights_from_distributed": self.receive,
            "/end_weight_update": self.end,
        }
        return [Route(path, route, methods=["POST"]) for path, route in routes.items()]

    async def from_disk(self, request: Request) -> Response:
        body = await parse(request, UpdateBody)
        async with self._one_at_a_time:
            await self._drop(resume=False)
        served = await self._engine.call(
            lambda s: s.update_weights(
                body.model_path,
                body.weight_version,
                flush_cache=body.flush_cache,
                abort_all=body.abort_all_requests,
            )
        )
        paused = {"num_paused_requests": 0}
        try:
            await asyncio.wrap_future(served)
        except ModelError as error:
            return _answer(False, str(error), **paused)
        return _answer(True, "Succeeded to update model weights.", **paused)

    async def version(self, request: Request) -> Response:
        body = await parse(request, VersionBody)

        def change(scheduler: Scheduler) -> None:
            if body.abort_all_requests:
                scheduler.abort(lambda sequence: True)
            scheduler.set_version(body.new_version)

        await self._engine.call(change)
        if not self._received.is_open:
            self._cancel_wait()
        message = f"Weight version updated to {body.new_version}"
        return _answer(True, message, new_version=body.new_version)

    async def join(self, request: Request) -> Response:
        body = await parse(request, JoinBody)
        if body.backend != "gloo":
            return _answer(False, f"the CPU engine joins groups of gloo, not of {body.backend}")
        place = (body.group_name, body.master_address, body.master_port)
        try:
            async with self._one_at_a_time:
                await asyncio.to_thread(
                    self._received.join, *place, body.rank_offset, body.world_size
                )
        except WeightsNotReceived as error:
            return _answer(False, str(error))
        return _answer(True, "Succeeded to initialize custom process group.")

    async def leave(self, request: Request) -> Response:
        body = await parse(request, LeaveBody)
        if self._received.leave(body.group_name):
            return _answer(True, "Succeeded to destroy custom process group.")
        return _answer(False, "The group to be destroyed does not exist.")

    async def begin(self, request: Request) -> Response:
        await parse(request, BeginBody)
        async with self._one_at_a_time:
            if self._received.is_open:
                return _answer(False, "a weight-update session is already open")
            if not await self._engine.call(lambda s: s.begin_update()):
                return _answer(False, "pause generation before the weights are updated")
            self._received.begin()
            self._wait_for_more()
        return _answer(True, "Success")

    async def receive(self, request: Request) -> Response:
        body = await parse(request, BucketBody)
        bucket = (body.group_name, body.names, body.dtypes, body.shapes)
        async with self._one_at_a_time:
            if not self._received.is_open:
                return _closed("update_weights_from_distributed")
            self._wait_for_more()
            try:
                await asyncio.to_thread(self._received.receive, *bucket)
            except WeightsNotReceived as error:
                await self._drop(resume=True)
                return _answer(False, f"Failed to receive weights: {error}")
            if body.weight_version is not None:
                await self._drop(resume=True)
                return _answer(
                    False, "weights have a version once all have come: /update_weight_version"
                )
            self._wait_for_more()
        return _answer(True, "Succeeded to update parameter online.")

    async def end(self, request: Request) -> Response:
        await parse(request, EndBody)
        async with self._one_at_a_time:
            if not self._received.is_open:
                return _closed("end_weight_update")
            self._wait_for_more()
            weights = self._received.take()
            try:
                await self._engine.call(lambda s: s.end_update(weights))
            except ModelError as error:
                return _answer(False, str(error))
        return _answer(True, "Success")

    async def _drop(self, *, resume: bool) -> None:
        self._cancel_wait()
        self._received.drop()
        await self._engine.call(lambda s: s.drop_update(resume=resume))

    def _wait_for_more(self) -> None:
        self._cancel_wait()
        loop = asyncio.get_running_loop()
        self._silence = loop.call_later(SILENCE_S, self._give_up)

    def _give_up(self) -> None:
        if self._one_at_a_time.locked():  # a transfer, which has a bound of its own
            self._wait_for_more()
            return
        self._received.drop()
        self._engine.post(lambda s: s.drop_update(resume=True))

    def _cancel_wait(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
        self._silence = None


def _answer(success: bool, message: str, **more: Any) -> Response:
    content = {"success": success, "message": message, **more}
    return JSONResponse(content, 200 if success else 400)


def _closed(what: str) -> Response:
    return _answer(False, f"{what} must run between begin_weight_update() and end_weight_update()")
