"""Reading a reply as an engine streams it: server-sent events, each with all tokens so far.

Used by the client beside this file.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx

_DATA = "data:"
_DONE = "[DONE]"
MIN_STREAM_INTERVAL = 8
"""Tokens from one event to the next below which a stream costs more than it saves: each event of
SGLang repeats the whole reply, and its default is an event for every token."""


async def pieces(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The answers of a stream, the last one included. Raises ValueError for what is none; what
    httpx raises when the connection closes."""
    async for line in response.aiter_lines():
        if not line.startswith(_DATA):
            continue
        data = line.removeprefix(_DATA).strip()
        if data == _DONE:
            return
        answer = json.loads(data)
        if not isinstance(answer, dict):
            raise ValueError(f"an event that is no object: {data[:80]!r}")
        yield answer


def has_ended(answer: dict[str, Any]) -> bool:
    """Whether it is the last piece."""
    meta = answer.get("meta_info")
    return isinstance(meta, dict) and bool(meta.get("finish_reason"))


def worth_streaming(server_info: dict[str, Any]) -> bool:
    interval = server_info.get("stream_interval")
    return isinstance(interval, int) and interval >= MIN_STREAM_INTERVAL
