"""An engine lends its memory to the trainer and takes it again, in routes of its kind.

Invariants: whether an engine has its memory is told by the engine where it can, else by its label,
which changes before and after: an engine that died, or whose caller died, is never asked twice for
what ends it; the labels are those of no version, so that no reply of such an engine is trained on;
it is held before, and nothing is in flight at it while it lends. The load that follows is a matter
of `engine_weights`. Used by the dialects and by what lends.
"""

from contextlib import suppress

from infra.policy.engines.dialects.protocol import Calls, EngineDialect, Json
from infra.policy.protocol import MalformedReply
from mainspring.errors import EngineFailing

LENDING, LENT, TAKING, TAKEN = "releasing", "released", "taking-memory", "took-memory"
"""Labels: before memory is given, without it, before it is taken, and with nothing in it yet."""
_UNDER_WAY = (LENDING, TAKING)


async def lend(calls: Calls, dialect: EngineDialect, engine: str) -> bool:
    """Have `engine` be without its memory, with nothing in flight; False: it was so already. Raises
    EngineError, EngineUnreachable."""
    routes = dialect.memory
    await calls.post(engine, *routes.end)
    is_lent, label = await _is_lent(calls, dialect, engine)
    if is_lent and label == LENT:
        return False
    await _name(calls, engine, LENDING)
    # A process that took the label before for current may have continued it.
    await calls.post(engine, *routes.end)
    if not is_lent:
        await _post(calls, engine, routes.give)
    await _name(calls, engine, LENT)
    return True


async def take_back(calls: Calls, dialect: EngineDialect, engine: str, label: str) -> None:
    """Have `engine`, whose label is `label`, take its memory; nothing happens where it has it, else
    it is held afterwards. Raises EngineError, EngineUnreachable."""
    if label not in (LENT, *_UNDER_WAY):
        return
    await calls.post(engine, *dialect.hold)
    is_lent, _ = await _is_lent(calls, dialect, engine)
    if is_lent:
        await _name(calls, engine, TAKING)
        await _post(calls, engine, dialect.memory.take)
    await _name(calls, engine, TAKEN)
    await calls.post(engine, *dialect.hold)  # to take memory continues some


async def _is_lent(calls: Calls, dialect: EngineDialect, engine: str) -> tuple[bool, str]:
    label = str((await dialect.info(calls, engine)).get("weight_version"))
    is_lent = await dialect.memory.is_lent(calls, engine)
    if is_lent is None and label in _UNDER_WAY:
        raise EngineFailing(
            f"policy engine {engine} does not tell whether it has given its memory away: what "
            "asked it has died meanwhile",
            remedy="start the engine again",
        )
    return label == LENT if is_lent is None else is_lent, label


async def _name(calls: Calls, engine: str, label: str) -> None:
    body = {"new_version": label, "abort_all_requests": False}
    await calls.post(engine, "/update_weight_version", body)


async def _post(calls: Calls, engine: str, route: tuple[str, Json]) -> None:
    with suppress(MalformedReply):  # SGLang and vLLM answer 200 with nothing
        await calls.post(engine, *route)
