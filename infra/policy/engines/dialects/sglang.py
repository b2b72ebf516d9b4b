"""SGLang's native HTTP API, and that of the CPU engine, which has the same routes.

Their language is the common one, so nothing is translated. Used where `policy.api` is "sglang", and
by judges on engines of one's own.
"""

from dataclasses import replace
from pathlib import Path

import httpx
import structlog

from infra.policy.engines.dialects.protocol import (
    Calls,
    EngineRequest,
    Json,
    LendingRoutes,
    PausedEngine,
    Streaming,
)
from infra.policy.engines.dialects.same_label import SameLabel
from infra.policy.engines.reply_stream import INTERVAL_TOKENS
from infra.policy.protocol import UnfitEngine
from infra.policy.weight_label import WeightLabel
from mainspring.errors import EngineError, EngineFailing, EngineUnreachable

CPU_ENGINE = "mainspring"
"""Value of `engine` in the answers of the CPU engine; SGLang has no such field."""
MIN_STREAM_INTERVAL = 8
"""Tokens from one event to the next below which a stream costs more than it saves: each event of
SGLang repeats the whole reply, and its default is an event for every token."""
MEMORY_SAVER = "--enable-memory-saver"
"""Option by which SGLang can give its memory away."""
_log = structlog.get_logger(__name__)


class SGLangDialect:
    hold: tuple[str, Json] = ("/pause_generation", {"mode": "retract"})
    resume: tuple[str, Json] = ("/continue_generation", {})

    memory = LendingRoutes(
        # SGLang ends where it gives memory away under a request, also under one that waits.
        end=("/pause_generation", {"mode": "abort"}),
        give=("/release_memory_occupation", {}),
        take=("/resume_memory_occupation", {}),
        is_lent=lambda calls, engine: _is_lent(calls, engine),
    )

    async def info(self, calls: Calls, engine: str) -> Json:
        return await calls.call(engine, "GET", "/model_info")

    async def ask(self, calls: Calls, engine: str, body: Json, *, streams: bool) -> EngineRequest:
        streaming, tells = Streaming.NONE, True
        if streams:
            streaming, tells = await self._streaming(calls, engine)
        if streaming is Streaming.NONE:
            return EngineRequest("/generate", body)
        asked = EngineRequest("/generate", body | {"stream": True}, streaming)
        return asked if tells else await self._confirmed(calls, engine, asked)

    async def _confirmed(self, calls: Calls, engine: str, asked: EngineRequest) -> EngineRequest:
        """SGLang tells the versions of a reply's tokens in its last event alone."""

        async def label() -> str:
            return str((await self.info(calls, engine)).get("weight_version"))

        same = SameLabel(await label(), label)
        num_tokens = 0

        def read(event: Json) -> Json:
            nonlocal num_tokens
            num_new = len(event["output_ids"])
            is_all = asked.streaming is Streaming.CUMULATIVE
            num_tokens = num_new if is_all else num_tokens + num_new
            meta = {"weight_versions": same.spans(num_tokens)} | event["meta_info"]
            return event | {"meta_info": meta}

        return replace(asked, read=read, stands=same.stands, tells_versions=False)

    async def _streaming(self, calls: Calls, engine: str) -> tuple[Streaming, bool]:
        """How replies come, and whether each event tells the versions of its tokens."""

        async def ask() -> tuple[Streaming, bool]:
            try:
                info = await calls.call(engine, "GET", "/server_info")
            except (EngineUnreachable, EngineFailing):
                raise
            except EngineError:
                info = {}
            streaming = _streaming_of(info)
            if streaming is Streaming.NONE:
                _log.info(
                    "replies are not stored in pieces: the engine streams too often or not at all",
                    engine=engine,
                    remedy=f"start SGLang with --stream-interval {INTERVAL_TOKENS}",
                )
            return streaming, info.get("engine") == CPU_ENGINE

        try:
            return await calls.fact(engine, "streaming", ask)
        except (EngineUnreachable, EngineFailing):
            return Streaming.NONE, True  # for now: what became of the reply itself is what counts

    async def load(self, calls: Calls, engine: str, model: Path, label: WeightLabel) -> None:
        body: Json = {"model_path": str(model.absolute()), "weight_version": str(label)}
        await calls.post(engine, "/update_weights_from_disk", body)

    async def paused(self, http: httpx.AsyncClient, url: str) -> PausedEngine | None:
        answer = await http.get(f"{url}/server_info")
        info = answer.json() if answer.status_code == 200 else None
        if not isinstance(info, dict):
            return None
        internal = info.get("internal_states")
        state = internal[0] if isinstance(internal, list) and internal else {}
        is_paused = state.get("paused")
        if is_paused is None:  # SGLang tells it by this route alone
            is_paused = (await http.get(f"{url}/ready")).status_code == 503
        if is_paused is not True:
            return None
        age, waiting = state.get("paused_s"), state.get("num_waiting_reqs")
        return PausedEngine(
            url,
            float(age) if isinstance(age, int | float) else None,
            waiting if isinstance(waiting, int) else None,
            self.resume[0],
        )


async def _is_lent(calls: Calls, engine: str) -> bool | None:
    """The CPU engine tells; SGLang does not, and without its option it would keep its memory."""
    info = await calls.call(engine, "GET", "/server_info")
    memory = info.get("memory")
    if info.get("engine") == CPU_ENGINE and isinstance(memory, dict):
        return len(memory["released"]) == 2
    if info.get("enable_memory_saver") is not True:
        raise UnfitEngine(
            f"policy engine {engine} cannot give its memory to the trainer (trainer.colocate)",
            remedy=f"start SGLang with {MEMORY_SAVER}",
        )
    return None


def _streaming_of(server_info: Json) -> Streaming:
    interval = server_info.get("stream_interval")
    if server_info.get("incremental_streaming_output") is True:
        return Streaming.INCREMENTAL
    if isinstance(interval, int) and interval >= MIN_STREAM_INTERVAL:
        return Streaming.CUMULATIVE
    return Streaming.NONE
