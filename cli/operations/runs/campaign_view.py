"""Everything that `mainspring campaign show` tells of one campaign: rows, waits, where files lie.

Needs the database; Temporal is asked while the campaign runs, and told of when it does not answer.
"""

import asyncio
import importlib
from dataclasses import dataclass
from pathlib import Path

from cli.operations.runs.stored_run import waits_here
from infra.db.connect import with_recorded_namespace
from infra.db.database import Database
from infra.db.naming import campaign_named
from infra.db.nodes.clocks import clocks
from infra.db.runs import campaigns
from infra.db.runs.campaigns import CampaignRecord
from mainspring.artifacts import layout
from mainspring.config.settings import Settings
from mainspring.errors import TemporalError
from mainspring.words.figures import clock_told
from mainspring.words.waits import ENDED, Wait, doing, waits
from reports.collect import collect
from reports.data import ReportData
from reports.summary import REPORT_FILE


@dataclass(frozen=True, slots=True)
class CampaignView:
    record: CampaignRecord
    data: ReportData
    doing: tuple[str, ...]
    waits: tuple[Wait, ...]
    report: Path | None
    """The written report's page."""
    clocks: dict[str, str]
    """By machine, while the campaign runs: how far its clock is off, where it is."""
    temporal_link: str
    """Page of Temporal's UI that lists workflows; empty: there is none."""


async def read(
    db: Database, settings: Settings, name: str, *, of_steps: bool = False
) -> CampaignView:
    """`of_steps`: with what only `--json` gives. Raises UnknownId."""
    record = await campaign_named(db, name)
    links = await with_recorded_namespace(settings, db)
    page = layout.report(settings.home, record.id) / REPORT_FILE
    # Loading what asks Temporal takes as long as the queries, which another process works on.
    data, (under_way, blocked) = await asyncio.gather(
        collect(db, record.id, temporal_ui=links.temporal_ui, of_steps=of_steps),
        _moves(db, settings, record),
    )
    return CampaignView(
        record=record,
        data=data,
        doing=under_way,
        waits=blocked,
        report=page if page.exists() else None,
        clocks={} if record.status in ENDED else await _clocks_off(db),
        temporal_link=links.temporal_link,
    )


async def _clocks_off(db: Database) -> dict[str, str]:
    sentences = {whose: clock_told(off_s) for whose, off_s in (await clocks(db)).items()}
    return {whose: words for whose, words in sentences.items() if words}


async def _moves(
    db: Database, settings: Settings, record: CampaignRecord
) -> tuple[tuple[str, ...], tuple[Wait, ...]]:
    if error := campaigns.not_whole(record.id, record.incomplete):
        return (), (Wait(error.message, error.remedy),)
    if record.status in ENDED:
        return (), ()
    await asyncio.to_thread(importlib.import_module, "infra.temporal.seen_waits")
    from temporalio.service import RPCError

    from infra.temporal.seen_waits import look
    from infra.temporal.service import connect_to_look

    try:
        temporal = await connect_to_look(settings, db)
        scene = await look(db, temporal, record, settings.home)
    except TemporalError as error:
        return (), (Wait(error.message, error.remedy),)
    except RPCError as error:
        return (), (Wait(f"Temporal refused: {error.message}"),)
    return tuple(doing(scene)), tuple(waits_here(settings.home, record, waits(scene)))
