"""Activities and waits of runs, kept for seconds and shared by all readers.

Invariants: Temporal that does not answer is a sentence on the page and no error of it; only what
does not move by itself is shown as a warning. Imported by pages.
"""

import asyncio
from dataclasses import dataclass

from temporalio.service import RPCError

from infra.db.runs import campaigns
from infra.db.runs.campaigns import CampaignRecord
from infra.temporal.seen_waits import look
from mainspring.errors import TemporalError
from mainspring.words.wait import WaitKind
from mainspring.words.waits import ENDED, doing, waits
from view.viewer import Viewer

KEPT_S = 5.0
ANSWERS_S = 2.0
"""A page waits no longer for what Temporal knows."""


@dataclass(frozen=True, slots=True)
class MoveWait:
    kind: WaitKind
    sentence: str


@dataclass(frozen=True, slots=True)
class RunMoves:
    doing: tuple[str, ...] = ()
    waits: tuple[MoveWait, ...] = ()
    """Those that block most come first."""

    @property
    def blocked(self) -> MoveWait | None:
        """The first wait that a person has to end."""
        return next((wait for wait in self.waits if wait.kind is WaitKind.BLOCKED), None)


async def moves(viewer: Viewer, record: CampaignRecord) -> RunMoves:
    """Empty for a run that has ended."""
    if record.status in ENDED:
        return RunMoves()
    looking = viewer.kept(("moves", record.id), KEPT_S, lambda: _look(viewer, record))
    try:
        return await asyncio.wait_for(looking, ANSWERS_S)
    except TimeoutError:
        # The answer that comes later is kept, and shown by the next reading of the page.
        late = "Temporal has not answered yet: what it waits for is not known"
        return RunMoves(waits=(MoveWait(WaitKind.SLOW, late),))


async def _look(viewer: Viewer, record: CampaignRecord) -> RunMoves:
    if error := campaigns.not_whole(record.id, record.incomplete):
        return _blocked(error.message, error.remedy)
    try:
        async with viewer.part("what the run waits for") as db:
            scene = await look(db, await viewer.temporal(), record, viewer.settings.home)
    except TemporalError as error:
        return _blocked(error.message, error.remedy)
    except RPCError as error:
        return _blocked(f"Temporal refused: {error.message}")
    found = await asyncio.to_thread(viewer.waits_here, record, waits(scene))
    shown = tuple(MoveWait(wait.kind, wait.line(scene.at)) for wait in found)
    return RunMoves(tuple(doing(scene)), shown)


def _blocked(message: str, remedy: str = "") -> RunMoves:
    sentence = f"{message}; {remedy}" if remedy else message
    return RunMoves(waits=(MoveWait(WaitKind.BLOCKED, sentence),))
