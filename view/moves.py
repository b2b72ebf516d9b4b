"""Activities and waits of runs, kept for seconds and shared by all readers.

Invariant: Temporal that does not answer is a sentence on the page and no error of it. Imported by
pages.
"""

import asyncio
from dataclasses import dataclass

from temporalio.service import RPCError

from infra.db.runs import campaigns
from infra.db.runs.campaigns import CampaignRecord
from infra.temporal.seen_waits import look
from mainspring.errors import TemporalError
from mainspring.words.waits import ENDED, Wait, doing, waits
from view.viewer import Viewer

KEPT_S = 5.0
ANSWERS_S = 2.0
"""A page waits no longer for what Temporal knows."""


@dataclass(frozen=True, slots=True)
class RunMoves:
    doing: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()
    """One sentence each, what blocks most first."""


async def moves(viewer: Viewer, record: CampaignRecord) -> RunMoves:
    """Empty for a run that has ended."""
    if record.status in ENDED:
        return RunMoves()
    looking = viewer.kept(("moves", record.id), KEPT_S, lambda: _look(viewer, record))
    try:
        return await asyncio.wait_for(looking, ANSWERS_S)
    except TimeoutError:
        # The answer that comes later is kept, and shown by the next reading of the page.
        return RunMoves(waits=("Temporal has not answered yet: what it waits for is not known",))


async def _look(viewer: Viewer, record: CampaignRecord) -> RunMoves:
    if error := campaigns.not_whole(record.id, record.incomplete):
        return RunMoves(waits=(_sentence(error.message, error.remedy),))
    try:
        async with viewer.part("what the run waits for") as db:
            scene = await look(db, await viewer.temporal(), record, viewer.settings.home)
    except TemporalError as error:
        return RunMoves(waits=(_sentence(error.message, error.remedy),))
    except RPCError as error:
        return RunMoves(waits=(f"Temporal refused: {error.message}",))
    found: list[Wait] = waits(scene)
    return RunMoves(tuple(doing(scene)), tuple(wait.line(scene.at) for wait in found))


def _sentence(message: str, remedy: str) -> str:
    return f"{message}; {remedy}" if remedy else message
