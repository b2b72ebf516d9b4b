"""Draining a node as an operator sees it: ask, then watch until nothing is open on it."""

import asyncio
import time

from cli.tables import Screen, as_text
from infra.db.database import Database
from infra.db.nodes import nodes, sandboxes
from infra.db.nodes.nodes import NodeRecord
from mainspring.errors import UsageError, WorkFailed
from mainspring.ids import NodeId
from mainspring.status import NodeStatus

LOOK_EVERY_S = 1.0
NUM_NAMED = 10
"""Rollouts named when the time is up; more would hide the remedy."""


async def drain(
    db: Database, node: NodeId, *, undo: bool, wait_s: float | None, by: str = ""
) -> NodeRecord:
    """Ask the node to drain, or to take work again; with `wait_s`, return when it is drained. `by`:
    who gives the command.

    Raises UsageError for an unknown node, and WorkFailed when the time is up or the node is dead.
    """
    await nodes.set_draining(db, node, not undo, by)
    record = await named(db, node)
    if wait_s is None:
        return record
    deadline = time.monotonic() + wait_s
    console = Screen(stderr=True)
    last_line = ""
    with console.status(f"draining node {node}") as status:
        while record.status is not NodeStatus.DRAINED:
            if record.status is NodeStatus.STOPPED and record.num_leased == 0:
                return record
            if record.status in (NodeStatus.LOST, NodeStatus.STOPPED):
                raise WorkFailed(
                    f"node {node} was last seen {record.seen_s:.0f} s ago: it cannot report "
                    "that it is empty",
                    remedy="start its worker again; it stays draining, and what was lost on it is "
                    "rebuilt on other nodes",
                )
            if time.monotonic() > deadline:
                raise WorkFailed(
                    f"node {node} is not empty after {wait_s:.0f} s: {await open_on(db, node)}",
                    remedy="repeat the command to keep waiting, or "
                    f"`mainspring node drain {node} --undo`",
                )
            saying = f"draining node {node}: {record.num_leased} sandboxes open"
            status.update(as_text(saying))
            if saying != last_line and not console.is_terminal:
                console.print(saying)
            last_line = saying
            await asyncio.sleep(LOOK_EVERY_S)
            record = await named(db, node)
    return record


async def named(db: Database, node: NodeId) -> NodeRecord:
    """Raises UsageError."""
    known = {record.said.id: record for record in await nodes.list_nodes(db)}
    if node in known:
        return known[node]
    raise UsageError(
        f"no node {node} has registered",
        remedy=f"known nodes: {', '.join(known)}" if known else "none has",
    )


async def open_on(db: Database, node: NodeId) -> str:
    """Rollouts that have a sandbox there, the first ones by name."""
    leases = await sandboxes.open_leases(db, node)
    if not leases:
        return "it has not said that it heard"
    named = [f"{lease.rollout} ({lease.purpose})" for lease in leases[:NUM_NAMED]]
    more = f" and {len(leases) - NUM_NAMED} more" if len(leases) > NUM_NAMED else ""
    return ", ".join(named) + more
