"""One look at a running engine: whether it answers, what it serves, how much it has to do.

Asks two cheap routes, `/model_info` and `/v1/loads`; an engine without the second tells no load.
Used by the client beside this file, and by what registers engines.
"""

import asyncio
from typing import Any

from infra.db.nodes.engines import EngineLook
from infra.policy.engines.wire import Wire
from mainspring.errors import EngineError

TIMEOUT_S = 4.0
"""An engine that takes longer to tell how it is counts as one that does not answer."""


async def look(wire: Wire, url: str) -> EngineLook:
    try:
        async with asyncio.timeout(TIMEOUT_S):
            info = await wire.dialect.info(wire, url)
            ranks = await _loads(wire, url)
    except TimeoutError:
        return EngineLook(fault=f"no answer within {TIMEOUT_S:g} s")
    except EngineError as error:
        return EngineLook(fault=error.message)
    vocab_size = info.get("vocab_size")
    return EngineLook(
        version=str(info.get("weight_version", "")),
        model=str(info.get("model_path", "")),
        vocab_size=vocab_size if isinstance(vocab_size, int) else None,
        num_running=int(sum(_numbers(ranks, "num_running_reqs"))),
        num_waiting=int(sum(_numbers(ranks, "num_waiting_reqs"))),
        kv_used=max(_numbers(ranks, "token_usage"), default=None),
    )


async def _loads(wire: Wire, url: str) -> list[dict[str, Any]]:
    """Loads of its data-parallel ranks; empty: it does not tell."""
    try:
        loads = (await wire.call(url, "GET", "/v1/loads")).get("loads")
    except EngineError:
        return await _load_of_vllm(wire, url)
    return [load for load in loads if isinstance(load, dict)] if isinstance(loads, list) else []


async def _load_of_vllm(wire: Wire, url: str) -> list[dict[str, Any]]:
    """Needs its option --enable-server-load-tracking."""
    try:
        return [{"num_running_reqs": (await wire.call(url, "GET", "/load")).get("server_load")}]
    except EngineError:
        return []


def _numbers(ranks: list[dict[str, Any]], name: str) -> list[float]:
    return [float(load[name]) for load in ranks if isinstance(load.get(name), int | float)]
