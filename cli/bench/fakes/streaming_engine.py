"""An engine that streams random tokens as SGLang does, with or without repeating the reply.

    python -m cli.bench.fakes.streaming_engine PORT incremental|repeated [paced]

`paced`: at the speed of one request of a busy engine, 100 tokens a second, or what a long reply
takes to be over in REPLY_S; else as fast as the client reads. Its own process, so that the bench
counts the CPU time of the client alone. Used by the bench of replies.
"""

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from infra.policy.engines.reply_stream import INTERVAL_TOKENS

TOKENS_PER_S = 100
REPLY_S = 10.0
VOCABULARY = 150_000


def app(*, incremental: bool, paced: bool) -> Starlette:
    info = {
        "weight_version": "0",
        "stream_interval": INTERVAL_TOKENS,
        "incremental_streaming_output": incremental,
    }

    async def tell_info(request: Request) -> JSONResponse:
        return JSONResponse(info)

    async def generate(request: Request) -> StreamingResponse:
        body: dict[str, Any] = await request.json()
        length = int(body["sampling_params"]["max_new_tokens"])
        events = _events(length, incremental)
        pause_s = INTERVAL_TOKENS / max(TOKENS_PER_S, length / REPLY_S) if paced else 0.0

        async def stream() -> AsyncIterator[str]:
            for event in events:
                await asyncio.sleep(pause_s)
                yield f"data: {event}\n\n"
            yield "data: [DONE]\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream")

    routes = [Route(path, tell_info) for path in ("/server_info", "/model_info")]
    return Starlette(routes=[*routes, Route("/generate", generate, methods=["POST"])])


def _events(length: int, incremental: bool) -> list[str]:
    ids = [random.randrange(VOCABULARY) for _ in range(length)]
    entries = [[-random.expovariate(2.0), token, None] for token in ids]
    ends = [*range(INTERVAL_TOKENS, length, INTERVAL_TOKENS), length]
    starts = [0, *ends[:-1]] if incremental else [0] * len(ends)
    return [
        json.dumps(
            {
                "output_ids": ids[start:end],
                "meta_info": {
                    "finish_reason": {"type": "length", "length": end} if end == length else None,
                    "weight_version": "0",
                    "weight_versions": [{"version": "0", "start": 0, "end": end}],
                    "output_token_logprobs": entries[start:end],
                    "completion_tokens": end,
                    "e2e_latency": end / TOKENS_PER_S,
                },
            }
        )
        for start, end in zip(starts, ends, strict=True)
    ]


if __name__ == "__main__":
    port, kind, *more = sys.argv[1:]
    served = app(incremental=kind == "incremental", paced="paced" in more)
    uvicorn.run(served, port=int(port), log_level="warning", lifespan="off")
