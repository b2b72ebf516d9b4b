"""SGLang's routes by which an engine gives its memory away and takes it again.

Both may be asked twice. Invariants: an engine without memory keeps the requests that come, as in a
pause, and answers all other routes; weights are lost with their memory, so that requests wait for
an update after the memory has come back, and its label is that of no version until then. SGLang
ends where it is asked while requests run, or twice; this engine refuses the first.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.bodies import MemoryBody, parse
from engine.scheduler import Scheduler
from engine.sequences import InvalidRequest
from engine.thread import EngineThread
from mainspring.errors import ModelError


class MemoryRoutes:
    def __init__(self, engine: EngineThread) -> None:
        self._engine = engine

    def table(self) -> list[Route]:
        routes: dict[str, Callable[[Request], Coroutine[Any, Any, Response]]] = {
            "/release_memory_occupation": self.release,
            "/resume_memory_occupation": self.resume,
        }
        return [Route(path, route, methods=["POST"]) for path, route in routes.items()]

    async def release(self, request: Request) -> Response:
        parts = (await parse(request, MemoryBody)).parts
        if not await self._engine.call(lambda s: s.release_memory(parts)):
            raise InvalidRequest("pause generation before memory is released: requests run")
        return JSONResponse(await self._engine.call(held_memory))

    async def resume(self, request: Request) -> Response:
        parts = (await parse(request, MemoryBody)).parts
        try:
            await self._engine.call(lambda s: s.resume_memory(parts))
        except ModelError as error:
            raise InvalidRequest(str(error)) from error
        return JSONResponse(await self._engine.call(held_memory))


def held_memory(scheduler: Scheduler) -> dict[str, object]:
    """Not SGLang's: what of its memory the engine has given away, and what weights hold."""
    return {
        "released": sorted(scheduler.released),
        "has_weights": scheduler.model.has_weights,
        "weights_bytes": scheduler.model.weights_bytes,
        "num_slots": len(scheduler.pool.lengths),
    }
