"""Events of a stream, whatever characters a reply has and wherever the network cuts it."""

import json
from collections.abc import AsyncIterator

import httpx
import pytest

from infra.policy.engines.wire import _events

BREAKS = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
"""Line breaks for `str.splitlines`, and none in an event stream."""
TEXTS = [f"calc{BREAKS}", "caf\u00e9 \U0001f600", "", "data: [DONE]", "a\r\nb\n\nc"]


def stream_of(end: str) -> bytes:
    """As SGLang writes it: characters that JSON need not escape are sent as they are."""
    events = [json.dumps({"text": text}, ensure_ascii=False) for text in TEXTS]
    return "".join(f"data: {event}{end}{end}" for event in [*events, "[DONE]"]).encode()


async def read(content: bytes, size: int) -> list[str]:
    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(content), size):
            yield content[start : start + size]

    response = httpx.Response(200, content=chunks())
    return [json.loads(data)["text"] async for data in _events(response)]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10_000])
async def test_each_event_is_read_whole(size: int, end: str) -> None:
    assert await read(stream_of(end), size) == TEXTS


async def test_an_event_that_was_cut_off_is_none() -> None:
    content = stream_of("\n")
    seen = {len(await read(content[:cut], 64)) for cut in range(len(content))}
    assert seen == set(range(len(TEXTS) + 1))
