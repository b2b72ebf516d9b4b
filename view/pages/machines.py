"""Sandbox nodes and policy engines, as they were last heard of.

Imported by `pages`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from infra.db import store
from infra.db.nodes import engines, nodes
from infra.db.nodes.engines import EngineRecord
from infra.db.nodes.nodes import NodeRecord
from infra.db.reading import sandbox_ages
from infra.db.reading.sandbox_ages import OldSandbox
from infra.db.runs import campaigns
from mainspring.config.run import RunConfig
from mainspring.words.figures import clock_told
from mainspring.words.waits import ENDED
from view.page import Page
from view.page_request import PageRequest
from view.viewer import Viewer

OLD_S = 3600.0
"""A sandbox that has been open for longer is listed."""
OLD_SHOWN = 50


@dataclass(frozen=True, slots=True)
class NodesPage:
    nodes: Sequence[NodeRecord]
    clocks: Sequence[str]
    """Sentence for each node whose clock is off; empty: it is not."""
    old: Sequence[OldSandbox]
    now: datetime


async def read_nodes(viewer: Viewer, asked: PageRequest) -> NodesPage:
    async with viewer.part("the nodes") as db:
        found = await nodes.list_nodes(db)
        now = await store.now(db)
        async with db.snapshot() as connection:
            old = await sandbox_ages.open_for(connection, OLD_S, OLD_SHOWN)
    return NodesPage(found, [clock_told(node.clock_off_s) for node in found], old, now)


@dataclass(frozen=True, slots=True)
class RunFleet:
    campaign: str
    status: str
    is_over: bool
    engines: Sequence[EngineRecord]


@dataclass(frozen=True, slots=True)
class EnginesPage:
    fleets: Sequence[RunFleet]
    """Engines of the runs, those that are under way first."""


FLEETS = 50


async def read_engines(viewer: Viewer, asked: PageRequest) -> EnginesPage:
    fleets = []
    async with viewer.part("the engines") as db:
        records = await campaigns.list_all(db)
        for record in records[:FLEETS]:
            if not isinstance(record.config, RunConfig):
                continue
            members = await engines.members(db, record.id, record.config.policy.engines)
            if members:
                is_over = record.status in ENDED
                fleets.append(RunFleet(record.id, record.status, is_over, members))
    return EnginesPage(sorted(fleets, key=lambda fleet: fleet.is_over))


PAGES = (
    Page("/nodes", "nodes.html.j2", read_nodes),
    Page("/engines", "engines.html.j2", read_engines),
)
