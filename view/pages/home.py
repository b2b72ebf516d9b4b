"""The first page: what runs, whether it is well, and what needs a person.

Imported by `pages`.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from infra.db.nodes import nodes
from infra.db.reading import progress, run_overviews
from infra.db.reading.progress import ListedProgress
from infra.db.runs import campaigns
from infra.db.runs.campaigns import CampaignRecord
from mainspring.errors import MainspringError
from mainspring.status import CampaignKind, CampaignStatus, NodeStatus
from mainspring.words.waits import ENDED
from view.moves import RunMoves, moves
from view.page import Page
from view.page_request import PageRequest
from view.viewer import Viewer

KEPT_S = 3.0
SHOWN = 100
"""Newest runs that are listed."""


@dataclass(frozen=True, slots=True)
class RunLine:
    id: str
    kind: CampaignKind
    status: CampaignStatus
    error: str | None
    created_at: datetime
    finished_at: datetime | None
    version: int | None
    num_steps: int | None
    """Planned; None: it is no training campaign."""
    num_steps_done: int
    progress: ListedProgress
    rewards: Sequence[float | None]
    moves: RunMoves


@dataclass(frozen=True, slots=True)
class HomePage:
    home: str
    database: str
    runs: Sequence[RunLine]
    num_runs: int
    nodes_up: int
    sandboxes_open: int
    sandboxes_room: int

    @property
    def is_moving(self) -> bool:
        return any(run.status not in ENDED for run in self.runs)

    @property
    def needs(self) -> list[tuple[str, str]]:
        """(run, sentence) of what does not move by itself, or has failed."""
        found = [(run.id, wait.sentence) for run in self.runs if (wait := run.moves.blocked)]
        return found + [(run.id, run.error) for run in self.runs if run.error]

    @property
    def trained(self) -> list[RunLine]:
        return [run for run in self.runs if run.kind in (CampaignKind.TRAIN, CampaignKind.SFT)]

    @property
    def measured(self) -> list[RunLine]:
        return [run for run in self.runs if run.kind not in (CampaignKind.TRAIN, CampaignKind.SFT)]


async def read(viewer: Viewer, asked: PageRequest) -> HomePage:
    return await viewer.kept("home", KEPT_S, lambda: _read(viewer))


async def _read(viewer: Viewer) -> HomePage:
    async with viewer.part("the list of runs") as db:
        records = await campaigns.list_all(db)
        if viewer.frozen is not None:
            records = [record for record in records if record.id in viewer.frozen]
        hosts = await nodes.list_nodes(db)
        name = db.name
    shown = records[:SHOWN]
    async with viewer.part("the progress of the runs") as db:
        standings = await progress.standings(db)
        async with db.snapshot() as connection:
            rewards = await run_overviews.rewards(connection, [record.id for record in shown])
    moved = await asyncio.gather(*(moves(viewer, record) for record in shown))
    up = [host for host in hosts if host.status is NodeStatus.UP]
    return HomePage(
        home=str(viewer.settings.home),
        database=name,
        runs=[
            RunLine(
                id=record.id,
                kind=record.kind,
                status=record.status,
                error=record.error,
                created_at=record.created_at,
                finished_at=record.finished_at,
                version=record.version,
                num_steps=_planned(record),
                num_steps_done=progress.num_steps_done(record, standing),
                progress=standing,
                rewards=rewards.get(record.id, []),
                moves=each,
            )
            for record, each in zip(shown, moved, strict=True)
            for standing in [standings.get(record.id, ListedProgress(0, 0, 0, 0))]
        ],
        num_runs=len(records),
        nodes_up=len(up),
        sandboxes_open=sum(host.num_open for host in up),
        sandboxes_room=sum(host.said.capacity for host in up),
    )


def _planned(record: CampaignRecord) -> int | None:
    if record.kind is not CampaignKind.TRAIN:
        return None
    try:
        return record.num_steps
    except MainspringError:
        return None


PAGES = (Page("/", "home.html.j2", read),)
