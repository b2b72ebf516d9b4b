"""SGLang's routes that load and remove adapters, and the names that requests may give.

Invariants: a name stands for one folder from its load to its removal; one that is being removed
takes no new request, and is removed when the last request with it has ended. Imported by
`engine.app`.
"""

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.bodies import LoadAdapterBody, UnloadAdapterBody, parse
from engine.scheduler import Scheduler
from engine.sequences import InvalidRequest
from engine.thread import EngineThread
from mainspring.errors import ModelError

REMOVE_LOOK_S = 0.05
"""Between two looks whether requests still have an adapter."""


class AdapterRoutes:
    def __init__(self, engine: EngineThread, scheduler: Scheduler) -> None:
        self._engine = engine
        self._model = scheduler.model
        self._names: dict[str, str] = {}
        """Folder by name; those that are being removed are none of them."""
        self._one_at_a_time = asyncio.Lock()

    def table(self) -> list[Route]:
        return [
            Route("/load_lora_adapter", self.load, methods=["POST"]),
            Route("/unload_lora_adapter", self.unload, methods=["POST"]),
        ]

    @property
    def takes_any(self) -> bool:
        """Passes of a reproducible engine have shapes that adapters would change."""
        return not self._model.is_reproducible

    def named(self, name: str | None) -> str | None:
        """Raises InvalidRequest for an adapter that is not loaded."""
        if name is None or name in self._names:
            return name
        loaded = ", ".join(self._names) or "none"
        raise InvalidRequest(f"adapter {name} is not loaded (loaded: {loaded})")

    def cards(self, parent: str) -> list[dict[str, Any]]:
        """Entries of /v1/models."""
        return [
            {"id": name, "object": "model", "root": folder, "parent": parent, "max_model_len": None}
            for name, folder in self._names.items()
        ]

    async def load(self, request: Request) -> Response:
        body = await parse(request, LoadAdapterBody)
        if not self.takes_any:
            return self._answer("a reproducible engine takes no adapters: start it without")
        async with self._one_at_a_time:
            try:
                await self._engine.call(
                    lambda s: s.model.adapters.load(body.lora_name, body.lora_path)
                )
            except ModelError as error:
                return self._answer(str(error))
            self._names[body.lora_name] = str(body.lora_path)
        return self._answer()

    async def unload(self, request: Request) -> Response:
        name = (await parse(request, UnloadAdapterBody)).lora_name
        async with self._one_at_a_time:
            if self._names.pop(name, None) is None:
                return self._answer(f"adapter {name} is not loaded")
            while not await self._engine.call(lambda s: s.remove_adapter(name)):
                await asyncio.sleep(REMOVE_LOOK_S)
        return self._answer()

    def _answer(self, error: str | None = None) -> Response:
        content = {
            "success": error is None,
            "error_message": error,
            "loaded_adapters": dict(self._names),
        }
        return JSONResponse(content, 200 if error is None else 400)
