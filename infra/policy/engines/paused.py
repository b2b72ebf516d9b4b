"""Engines that are paused for new weights: how they continue, and those that stayed paused.

Invariant: what pauses an engine continues it on every path, in several tries; where that cannot
be had the failure is StillPaused, which never counts as an engine that is absent. A process that
ended is not paused when it is started again. Used by what loads weights, and by what shows waits.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import httpx
import structlog

from infra.policy.engines.dialects.protocol import EngineDialect, PausedEngine
from infra.policy.engines.dialects.sglang import SGLangDialect
from infra.policy.engines.wire import NothingListens, Wire
from mainspring.errors import EngineError, EngineUnreachable

WAITS_S = (0.0, 0.2, 0.5, 1.0, 2.0, 4.0)
"""Before each try to continue: a connection that was cut is one try, an engine that stalls is not
dead."""
LOOK_TIMEOUT_S = 5.0
_log = structlog.get_logger(__name__)


class StillPaused(EngineUnreachable):
    """An engine was paused, and it is not known to generate again."""

    def __init__(
        self, engine: str, resume_path: str, reason: str, before: BaseException | None
    ) -> None:
        cause = ""
        if before is not None:
            load_fault = before.message if isinstance(before, EngineError) else repr(before)
            cause = f"; its load had failed: {load_fault}"
        super().__init__(
            f"policy engine {engine} was paused for new weights and does not continue: "
            f"{reason}{cause}",
            remedy=f"its requests wait: curl -X POST {engine}{resume_path}, or start it "
            "again; it is tried again meanwhile",
        )
        self.engine = engine


@asynccontextmanager
async def paused(wire: Wire, engine: str) -> AsyncIterator[None]:
    """While weights are loaded: requests in flight are taken back, and later ones wait. Raises
    StillPaused in the place of whatever failed before."""
    failure: BaseException | None = None
    try:
        await wire.post(engine, *wire.dialect.hold)
        yield
    except BaseException as error:
        failure = error
        raise
    finally:
        # A cut answer of the pause, too, may have paused it.
        await asyncio.shield(let_generate(wire, engine, before=failure))


async def let_generate(wire: Wire, engine: str, *, before: BaseException | None = None) -> None:
    """Continue `engine`; nothing happens where it is not paused. Raises StillPaused; NothingListens
    where its process has ended, unless `before` tells that."""
    last: EngineError | None = None
    for wait_s in WAITS_S:
        await asyncio.sleep(wait_s)
        try:
            await wire.post(engine, *wire.dialect.resume)
            return
        except NothingListens as gone:
            last = gone
            if gone.has_ended:
                break
        except EngineError as error:
            last = error
    assert last is not None
    if isinstance(last, NothingListens) and last.has_ended:
        if before is None:
            raise last
        return
    _log.error("an engine stays paused", engine=engine, reason=last.message)
    raise StillPaused(engine, wire.dialect.resume[0], last.message, before) from before


async def paused_engines(
    urls: Sequence[str],
    *,
    dialect: EngineDialect | None = None,
    api_key: str = "",
    timeout_s: float = LOOK_TIMEOUT_S,
) -> list[PausedEngine]:
    """Those of `urls` that answer that they are paused; engines that do not answer are none of
    them. For commands that show what a run waits for."""
    async with httpx.AsyncClient(
        headers={"Authorization": f"Bearer {api_key}"} if api_key else None,
        timeout=timeout_s,
        trust_env=False,  # engines are inside the cluster: never through a proxy
    ) as http:
        spoken = dialect or SGLangDialect()
        engines = await asyncio.gather(*(_look(spoken, http, url.rstrip("/")) for url in urls))
    return [engine for engine in engines if engine is not None]


async def _look(dialect: EngineDialect, http: httpx.AsyncClient, url: str) -> PausedEngine | None:
    try:
        return await dialect.paused(http, url)
    except (httpx.HTTPError, ValueError, AttributeError):
        return None
