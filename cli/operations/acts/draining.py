"""DrainNode a sandbox node, and letting it take work again, from the page of the nodes.

Imported by `offered`.
"""

import shlex
from collections.abc import Mapping
from typing import Any

from cli.operations.acts.services import Place, counted
from cli.operations.machine.drain import drain, named, open_on
from infra.db.database import Database
from infra.db.nodes.nodes import NodeRecord
from mainspring.ids import NodeId
from mainspring.status import NodeStatus
from view.actions.protocol import ActRequest, Preview, Say
from view.page_request import url

_GONE = (NodeStatus.LOST, NodeStatus.STOPPED)


class DrainNode:
    """Let a node open no new sandboxes, or undo that."""

    def __init__(self, place: Place, undo: bool) -> None:
        self._place = place
        self._undo = undo
        self.name = "undrain" if undo else "drain"
        self.title = "take new work again" if undo else "drain"

    def offer(self, shown: Any) -> Mapping[str, str] | None:
        if not isinstance(shown, NodeRecord) or shown.draining is not self._undo:
            return None
        if shown.status in _GONE and not self._undo:
            return None
        return {"of": shown.said.id}

    async def preview(self, asked: ActRequest) -> Preview:
        node = NodeId(asked.of)

        async def read(db: Database) -> tuple[NodeRecord, str]:
            record = await named(db, node)
            return record, await open_on(db, node) if record.num_leased else ""

        record, rollouts = await self._place.read(read)
        are_open = _open_on(record)
        if self._undo:
            what = f"It opens new sandboxes again; {are_open} now."
        else:
            what = (
                f"It opens no new sandboxes. {are_open} now, and finish. It stays "
                "drained, also when it is started again, until it is told to take new work."
            )
        option = " --undo" if self._undo else ""
        return Preview(
            what=[what, *([f"Open: {rollouts}."] if rollouts and not self._undo else ())],
            command=f"mainspring node drain {shlex.quote(asked.of)}{option}",
            back=url("nodes"),
            seen=str(record.draining),
        )

    async def do(self, asked: ActRequest, shown: Preview, by: str, say: Say) -> str:
        async def go(db: Database) -> NodeRecord:
            return await drain(db, NodeId(asked.of), undo=self._undo, wait_s=None, by=by)

        record = await self._place.read(go)
        if self._undo:
            return f"node {asked.of} is told to take new work again"
        if record.status is NodeStatus.DRAINED:
            return f"node {asked.of} is drained: it may be stopped"
        return f"node {asked.of} is told to drain; {_open_on(record)}"


def _open_on(record: NodeRecord) -> str:
    number = counted(record.num_leased, "sandbox", "sandboxes")
    return f"{number} {'is' if record.num_leased == 1 else 'are'} open on it"
