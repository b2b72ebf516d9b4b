"""SGLang's native HTTP routes over an engine thread.

Wire rules kept from SGLang: output_token_logprobs entries are [logprob, id, null]; finish_reason
is an object; schema violations answer {"error": ".."} and all other bad requests
{"error": {"message": ".."}}, both 400; control routes answer {"success", "message"}; new requests
during a pause wait until generation continues. Not implemented: streaming of batches, prompt
log-probs.
"""

import asyncio
import hmac
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.adapter_routes import AdapterRoutes
from engine.bodies import AbortBody, GenerateBody, PauseBody, parse
from engine.load_routes import LoadRoutes
from engine.memory_routes import MemoryRoutes, held_memory
from engine.scheduler import PauseMode, Scheduler
from engine.sequences import (
    InvalidRequest,
    SamplingOptions,
    SchemaViolation,
    Sequence,
    StopStrings,
    parse_options,
)
from engine.streaming import Pieces
from engine.thread import EngineFailed, EngineThread
from engine.update_routes import UpdateRoutes
from infra.policy.engines.engine_check import CPU_ENGINE
from infra.policy.engines.reply_stream import INTERVAL_TOKENS
from infra.policy.model.model_files import tokenizer_digest
from mainspring import __version__
from mainspring.model_folder.config_file import sizes_of

HEALTH_GENERATE_TIMEOUT_S = 20.0
"""As long as SGLang waits for its own probe token."""
OPEN_PATHS = frozenset({"/health", "/health_generate", "/ready"})
"""Probes carry no key."""
_OUT_OF_MEMORY = re.compile(r"out of memory|not enough memory|can.?t allocate|Cannot allocate")
_log = structlog.get_logger(__name__)


class Routes:
    def __init__(
        self,
        engine: EngineThread,
        scheduler: Scheduler,
        adapters: AdapterRoutes,
        loads: LoadRoutes,
    ) -> None:
        self._engine = engine
        self._loads = loads
        self._scheduler = scheduler
        """Read here without the engine thread: its weight_version and flags alone."""
        self._model = scheduler.model
        self._adapters = adapters
        self._started_at = time.time()
        self._tokenizer_digest = tokenizer_digest(scheduler.model.directory)

    def table(self) -> list[Route]:
        both, post, get = ["GET", "POST"], ["POST"], ["GET"]
        return [
            Route("/generate", self.generate, methods=["POST", "PUT"]),
            Route("/health", self.health, methods=get),
            Route("/health_generate", self.health_generate, methods=get),
            Route("/ready", self.ready, methods=get),
            Route("/model_info", self.model_info, methods=get),
            Route("/get_model_info", self.model_info, methods=get),
            Route("/server_info", self.server_info, methods=get),
            Route("/get_server_info", self.server_info, methods=get),
            Route("/v1/models", self.models, methods=get),
            Route("/pause_generation", self.pause_generation, methods=post),
            Route("/continue_generation", self.continue_generation, methods=post),
            Route("/abort_request", self.abort_request, methods=post),
            Route("/flush_cache", self.flush_cache, methods=both),
        ]

    async def generate(self, request: Request) -> Response:
        body = await parse(request, GenerateBody)
        if body.logprob_start_len >= 0 or body.top_logprobs_num:
            raise InvalidRequest(
                "the CPU engine does not implement logprob_start_len and top_logprobs_num"
            )
        sequences, batched = self._sequences(body)
        if body.stream:
            if batched:
                raise InvalidRequest("the CPU engine streams one request at a time, not a batch")
            return await self._stream(sequences[0], body.return_logprob)
        await self._complete(request, sequences)
        answers = [self._answer(sequence, 0, body.return_logprob) for sequence in sequences]
        return JSONResponse(answers if batched else answers[0])

    async def _stream(self, sequence: Sequence, with_logprobs: bool) -> Response:
        pieces = Pieces(lambda so_far, start: self._answer(so_far, start, with_logprobs))
        sequence.after_token = pieces.look
        await self._engine.call(lambda s: s.submit(sequence))
        return StreamingResponse(
            pieces.events(self._engine, sequence), media_type="text/event-stream"
        )

    def _sequences(self, body: GenerateBody) -> tuple[list[Sequence], bool]:
        prompts, batched = self._prompts(body)
        rids = body.rid if isinstance(body.rid, list) else [body.rid] if body.rid else None
        if rids is not None and len(rids) != len(prompts):
            raise InvalidRequest(f"{len(rids)} rid for {len(prompts)} prompts")
        options = body.sampling_params or {}
        if isinstance(options, dict):
            options = [options] * len(prompts)
        if len(options) != len(prompts):
            raise InvalidRequest(f"{len(options)} sampling_params for {len(prompts)} prompts")
        sequences = [
            self._sequence(rids[index] if rids else uuid.uuid4().hex, ids, parse_options(raw))
            for index, (ids, raw) in enumerate(zip(prompts, options, strict=True))
        ]
        lora_path = body.lora_path
        names = lora_path if isinstance(lora_path, list) else [lora_path] * len(prompts)
        if len(names) != len(prompts):
            raise InvalidRequest(f"{len(names)} lora_path for {len(prompts)} prompts")
        for sequence, name in zip(sequences, names, strict=True):
            sequence.adapter = self._adapters.named(name)
        return sequences, batched

    def _prompts(self, body: GenerateBody) -> tuple[list[list[int]], bool]:
        if (body.input_ids is None) == (body.text is None):
            raise InvalidRequest("expected either input_ids or text")
        content = body.text if body.input_ids is None else body.input_ids
        batched = isinstance(content, list) and bool(content) and not isinstance(content[0], int)
        rows: list[Any] = list(content) if batched else [content]  # pyright: ignore[reportArgumentType]
        encode = self._model.tokenizer.encode
        return [encode(row) if isinstance(row, str) else row for row in rows], batched

    def _sequence(self, rid: str, ids: list[int], options: SamplingOptions) -> Sequence:
        if not ids:
            raise InvalidRequest("the prompt is empty")
        if min(ids) < 0 or max(ids) >= self._model.vocab_size:
            raise InvalidRequest(f"input_ids must lie in [0, {self._model.vocab_size})")
        limit = self._model.context_length
        if len(ids) + options.max_new_tokens > limit:
            raise InvalidRequest(
                f"Requested token count exceeds the model's maximum context length of {limit} "
                f"tokens: {len(ids)} in the prompt and {options.max_new_tokens} for the completion"
            )
        if self._model.is_reproducible and not options.is_greedy and options.sampling_seed is None:
            raise InvalidRequest(
                "a reproducible engine draws no token at random: give sampling_params.sampling_seed"
                ", or temperature 0"
            )
        stops = frozenset(options.stop_token_ids or ()) | self._model.end_ids
        return Sequence(
            rid=rid,
            ids=list(ids),
            options=options,
            stop_ids=frozenset() if options.ignore_eos else stops,
            prompt_tokens=len(ids),
            stop_strings=StopStrings(options.stops, self._model.tokenizer.decode),
        )

    async def _complete(self, request: Request, sequences: list[Sequence]) -> None:
        """Run to the end, or abort when the client goes away."""
        await self._engine.call(lambda s: [s.submit(sequence) for sequence in sequences])
        finished = asyncio.gather(*(asyncio.wrap_future(s.done) for s in sequences))
        disconnected = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({finished, disconnected}, return_when=asyncio.FIRST_COMPLETED)
            if not finished.done():
                await self._engine.call(lambda s: s.abort(sequences.__contains__))
            await finished
        finally:
            disconnected.cancel()

    def _answer(self, sequence: Sequence, start: int, with_logprobs: bool) -> dict[str, Any]:
        """Its tokens from `start` on."""

        def decode(ids: list[int]) -> str:
            skips = sequence.options.skip_special_tokens
            return self._model.tokenizer.decode(ids, skip_special_tokens=skips)

        return {
            "text": sequence.text(decode, start),
            "output_ids": sequence.output_ids[start:],
            "meta_info": sequence.meta_info(
                self._scheduler.weight_version, start, with_logprobs=with_logprobs
            ),
        }

    async def health(self, request: Request) -> Response:
        return Response(status_code=200 if self._engine.healthy else 503)

    async def health_generate(self, request: Request) -> Response:
        """One token through the model; an engine that is paused or without memory cannot be asked
        and counts as healthy."""
        if self._engine.healthy and self._scheduler.generates:
            sequence = self._sequence("health-" + uuid.uuid4().hex, [0], _PROBE)
            try:
                async with asyncio.timeout(HEALTH_GENERATE_TIMEOUT_S):
                    await self._complete(request, [sequence])
            except (TimeoutError, EngineFailed):
                return Response(status_code=503)
        return await self.health(request)

    async def ready(self, request: Request) -> Response:
        ready = self._engine.healthy and self._scheduler.generates
        return Response(status_code=200 if ready else 503)

    async def model_info(self, request: Request) -> Response:
        return JSONResponse(self._describe())

    async def server_info(self, request: Request) -> Response:
        return JSONResponse(
            {
                **self._describe(),
                "max_running_requests": self._scheduler.max_batch,
                "startup_time": self._started_at,
                "tp_size": 1,
                "enable_lora": self._adapters.takes_any,
                "stream_interval": INTERVAL_TOKENS,
                "incremental_streaming_output": True,
                "internal_states": [await self._loads.internal_state()],
                "memory": await self._engine.call(held_memory),
                "version": f"mainspring-{__version__}",
            }
        )

    async def models(self, request: Request) -> Response:
        name = str(self._model.directory)
        card = {"id": name, "object": "model", "root": name}
        cards: list[dict[str, Any]] = [card | {"max_model_len": self._model.context_length}]
        cards += self._adapters.cards(parent=name)
        return JSONResponse({"object": "list", "data": cards})

    def _describe(self) -> dict[str, Any]:
        directory = str(self._model.directory)
        return {
            "model_path": directory,
            "served_model_name": directory,
            "tokenizer_path": directory,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": self._scheduler.weight_version,
            "load_format": "auto",
            "model_type": self._model.config.model_type,
            "architectures": self._model.config.architectures,
            # Not SGLang's: what infra.policy.engines.engine_check asks for.
            "engine": CPU_ENGINE,
            "vocab_size": self._model.vocab_size,
            "sizes": sizes_of(vars(self._model.config)),
            "tokenizer_digest": self._tokenizer_digest,
            "dtype": str(self._model.dtype).removeprefix("torch."),
            "device": str(self._model.device),
            "kept": self._model.kept,
            "weights_digest": self._model.weights_digest,
            "context_length": self._model.context_length,
            "reproducible": self._model.is_reproducible,
            "stamp": self._model.stamp.model_dump(),
        }

    async def pause_generation(self, request: Request) -> Response:
        mode = (await parse(request, PauseBody)).mode
        if mode is PauseMode.IN_PLACE and self._model.is_reproducible:
            raise InvalidRequest(
                "a reproducible engine does not pause in place: requests would continue under new "
                "weights on keys and values of the old ones; pause with mode retract"
            )
        await self._engine.call(lambda s: s.pause(mode))
        return JSONResponse({"message": "Generation paused successfully.", "status": "ok"})

    async def continue_generation(self, request: Request) -> Response:
        await self._engine.call(lambda s: s.resume())
        return JSONResponse({"message": "Generation continued successfully.", "status": "ok"})

    async def abort_request(self, request: Request) -> Response:
        body = await parse(request, AbortBody)
        # By the whole id: SGLang also aborts the requests whose ids begin with it.
        await self._engine.call(lambda s: s.abort(lambda q: body.abort_all or q.rid == body.rid))
        return Response()

    async def flush_cache(self, request: Request) -> Response:
        if await self._engine.call(lambda s: s.flush()):
            return PlainTextResponse("Cache flushed.\n")
        return PlainTextResponse("Flush cache failed.\n", status_code=400)


_PROBE = SamplingOptions.model_validate({"max_new_tokens": 1, "temperature": 0})


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _Failures:
    """Answers 500 with the cause: what asks has no other way to tell it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def noting(message: Message) -> None:
            nonlocal has_begun
            has_begun = has_begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception as error:
            if has_begun or scope["type"] != "http":
                raise
            _log.exception("a request failed", path=scope["path"])
            body = {"error": {"message": cause_of(error)}}
            await JSONResponse(body, status_code=500)(scope, receive, send)


def cause_of(error: BaseException) -> str:
    """Class and message; out of memory is said as such, whichever allocator was asked."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    is_memory = isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(str(error))
    return f"out of memory ({text})" if is_memory else text


class _ApiKey:
    """Refuses requests without the bearer token, probes excepted."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._expected = f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            key = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(key, self._expected):
                response = JSONResponse({"error": "Unauthorized"}, status_code=401)
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _refusal(
    content: Callable[[Exception], Any], status: int
) -> Callable[..., Awaitable[Response]]:
    async def handler(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": content(error)}, status_code=status)

    return handler


def make_app(engine: EngineThread, scheduler: Scheduler, *, api_key: str = "") -> ASGIApp:
    adapters, loads = AdapterRoutes(engine, scheduler), LoadRoutes(engine, scheduler)
    routes = Routes(engine, scheduler, adapters, loads).table()
    app = Starlette(
        routes=routes
        + adapters.table()
        + loads.table()
        + UpdateRoutes(engine).table()
        + MemoryRoutes(engine).table(),
        middleware=[Middleware(_Failures)],
        exception_handlers={
            SchemaViolation: _refusal(str, 400),
            InvalidRequest: _refusal(lambda error: {"message": str(error)}, 400),
            EngineFailed: _refusal(lambda error: {"message": str(error)}, 503),
            # A killed worker's request breaks off in its body: not an error, and no answer is read.
            ClientDisconnect: _refusal(str, 400),
        },
    )
    return _ApiKey(app, api_key) if api_key else app
