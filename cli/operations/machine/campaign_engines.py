"""The engines of a campaign as a person changes them: add, drain, remove, list.

Invariants: an engine joins only after it was asked and found to fit the campaign (model,
vocabulary, tokenizer, precision, context, and the bits of a reproducible one); what is listed was
asked a moment ago, by another process or by this one. Imported by commands.
"""

import asyncio
import time
from pathlib import Path

from pydantic import SecretStr

from infra.db.database import Database
from infra.db.fence import UnknownId
from infra.db.nodes import engines
from infra.db.nodes.engines import LOOK_S, LOST_AFTER_S, EngineRecord
from infra.db.runs import changes
from infra.db.runs.campaigns import CampaignRecord
from infra.db.training import policies
from infra.policy.engines.dialects.choice import dialect_of
from infra.policy.engines.engine_check import EngineReport, check_engine
from infra.policy.engines.engine_look import look
from infra.policy.engines.wire import Wire
from mainspring.algorithms.schedule import Schedule
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import url_fault
from mainspring.config.section import BUNDLED
from mainspring.errors import EngineError, UsageError, WorkFailed
from mainspring.status import EngineOrigin, EngineStatus

POLL_S = 0.5


def require_engines(record: CampaignRecord) -> None:
    """Raises UsageError for a campaign that asks no policy engines."""
    if not record.config.policy.api.gives_tokens:
        raise UsageError(
            f"campaign {record.id} asks an endpoint (policy.api = "
            f'"{record.config.policy.api}"), and has no engines',
            remedy="its endpoints are policy.engines in its file",
        )


async def require_fit(db: Database, record: CampaignRecord, url: str, key: SecretStr) -> None:
    """Raises UsageError for an engine that the campaign cannot use, and EngineError for what does
    not answer as one."""
    config = record.config
    report = await check_engine(
        url,
        api_key=key.get_secret_value(),
        model_dir=await _model_of(db, record),
        max_context=config.policy.max_context,
        adapter_rank=config.adapter_rank if isinstance(config, CampaignConfig) else 0,
        dtype=config.policy.dtype,
        api=config.policy.api,
        trained_at=config.policy.temperature if isinstance(config, CampaignConfig) else None,
    )
    remedy = f"start one as campaign {record.id} needs it, and join with that"
    if report.mismatch:
        raise UsageError(f"not added: {report.mismatch}", remedy=remedy)
    if isinstance(config, CampaignConfig) and config.schedule is Schedule.REPRODUCIBLE:
        await _require_same_bits(db, record, report, key)


async def listed(db: Database, record: CampaignRecord, key: SecretStr) -> list[EngineRecord]:
    """The members, those asked again that no process has asked for a while."""
    urls = record.config.policy.engines
    fleet, mine = await engines.claim(db, record.id, urls)
    if not mine:
        return fleet
    wire = Wire(LOST_AFTER_S, key.get_secret_value(), dialect_of(record.config.policy.api))
    try:
        looks = await asyncio.gather(*(look(wire, member.url) for member in mine))
    finally:
        await wire.aclose()
    for member, seen in zip(mine, looks, strict=True):
        await engines.saw(db, record.id, member.name, member.url, seen)
    return await engines.members(db, record.id, urls)


async def add(
    db: Database, record: CampaignRecord, url: str, name: str, key: SecretStr, by: str
) -> EngineRecord:
    """`by`: who gives the command. Raises UsageError and EngineError; nothing is stored then."""
    url = url.rstrip("/")
    if fault := url_fault(url):
        raise UsageError(f"{url!r} is not an http(s) URL: {fault}", remedy="give http://HOST:PORT")
    require_engines(record)
    await require_fit(db, record, url, key)
    name = name or url
    await engines.add(db, record.id, record.config.policy.engines, name, url, by)
    return engines.find(record.id, await listed(db, record, key), name)


async def drain(
    db: Database,
    record: CampaignRecord,
    name: str,
    key: SecretStr,
    *,
    undo: bool,
    wait_s: float | None,
    by: str = "",
) -> EngineRecord:
    """`by`: who gives the command. Raises UsageError for an unknown engine, and WorkFailed when it
    is not empty in time."""
    await engines.set_draining(db, record.id, record.config.policy.engines, name, not undo, by)
    member = engines.find(record.id, await listed(db, record, key), name)
    if wait_s is None:
        return member
    # A process that has not heard of it may send some requests more.
    settled = time.monotonic() + 2 * LOOK_S
    deadline = time.monotonic() + wait_s
    while time.monotonic() < settled or member.status is EngineStatus.DRAINING:
        if time.monotonic() > deadline:
            raise WorkFailed(
                f"engine {member.name} is not empty after {wait_s:.0f} s: {member.load} requests",
                remedy="repeat the command to keep waiting, or take it back with --undo",
            )
        await asyncio.sleep(POLL_S)
        member = engines.find(record.id, await listed(db, record, key), name)
    return member


async def remove(db: Database, record: CampaignRecord, name: str, by: str) -> EngineRecord:
    """Raises UsageError for an unknown engine, and for the last one of a campaign that lists it."""
    urls = record.config.policy.engines
    fleet = await engines.members(db, record.id, urls)
    member = engines.find(record.id, fleet, name)
    if member.url in urls:
        left = [url for url in urls if url != member.url]
        if len(fleet) == 1:
            raise UsageError(
                f"engine {member.name} is the only one of campaign {record.id}",
                remedy=f"add another one first: `mainspring engine add {record.id} URL`",
            )
        values = [(("policy", "engines"), left)]
        await changes.add(db, record.id, values, by)
    if member.origin is not EngineOrigin.LISTED or member.url in urls:
        await engines.remove(db, record.id, member.name, by)
    return member


async def _model_of(db: Database, record: CampaignRecord) -> Path | None:
    """The folder of the campaign's first version, or of the model that it will be made from; None
    for a bundled one that is not made yet."""
    try:
        return Path((await policies.get_policy(db, record.id, 0)).path)
    except UnknownId:
        model = record.config.policy.model
        return None if model == BUNDLED else Path(model)


async def _require_same_bits(
    db: Database, record: CampaignRecord, report: EngineReport, key: SecretStr
) -> None:
    if not report.reproducible:
        raise UsageError(
            f"policy engine {report.url} gives replies that depend on which requests run together, "
            f'and campaign {record.id} has schedule = "reproducible"',
            remedy="start it with `mainspring serve --reproducible`",
        )
    for member in await engines.members(db, record.id, record.config.policy.engines):
        try:
            other = await check_engine(member.url, api_key=key.get_secret_value())
        except EngineError:
            continue  # it is asked when it answers again: see SameBits
        if other.stamp != report.stamp:
            raise UsageError(
                f"policy engines {member.name} and {report.url} compute other bits: {other.stamp} "
                f"and {report.stamp}",
                remedy="run all engines of a reproducible campaign on one kind of machine and one "
                "version",
            )
