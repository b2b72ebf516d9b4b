"""Parts of a campaign or other run that still live, and waiting until none does.

Invariants: counted are its workflows that run in Temporal and its sandboxes that a live node holds;
what outlives its run's end is cancelled, as nothing would use it; a run that was started again
meanwhile is left alone; each wait is told in words, and ends when nothing changes for `STILL_S`.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from infra.db.database import Database
from infra.db.nodes import nodes, sandboxes
from infra.db.runs import campaigns
from mainspring.ids import CampaignId, campaign_workflow
from mainspring.protocol.names import Workflow
from mainspring.status import NodeStatus

STILL_S = 120.0
"""A node that died is given up after 45 s, an activity of a dead worker after 15 s."""
SAY_EVERY_S = 15.0
_NOUNS = {
    Workflow.ROLLOUT: ("rollout", "rollouts"),
    Workflow.GROUP: ("group", "groups"),
    Workflow.RUN: ("evaluation", "evaluations"),
}
_HOLDING = (NodeStatus.UP, NodeStatus.DRAINING)


@dataclass(frozen=True, slots=True)
class Alive:
    workflows: dict[str, str] = field(default_factory=dict)
    """Ids of those that run, with their types."""
    own: str = ""
    """Id of the run's own workflow."""
    sandboxes: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.workflows or self.sandboxes)

    def __str__(self) -> str:
        counts = Counter(kind for id, kind in self.workflows.items() if id != self.own)
        parts = ["its workflow"] if self.own in self.workflows else []
        for kind, number in sorted(counts.items()):
            one, many = _NOUNS.get(Workflow(kind), (f"workflow {kind}", f"workflows {kind}"))
            parts.append(f"{number} {one if number == 1 else many}")
        if self.sandboxes:
            number = len(self.sandboxes)
            parts.append(f"{number} {'sandbox' if number == 1 else 'sandboxes'}")
        return ", ".join(parts) or "nothing"


async def look(db: Database, client: Client, campaign: CampaignId) -> Alive:
    """Raises DatabaseError, RPCError."""
    own = campaign_workflow(campaign)
    query = f"CampaignId = '{campaign}' AND ExecutionStatus = 'Running'"
    workflows = {
        workflow.id: workflow.workflow_type async for workflow in client.list_workflows(query)
    }
    leases = await sandboxes.open_of(db, campaign)
    if leases:
        holding = {node.said.id for node in await nodes.list_nodes(db) if node.status in _HOLDING}
        leases = [lease for lease in leases if lease.node in holding]
    return Alive(workflows, own, frozenset(lease.sandbox for lease in leases))


class Ending:
    """The last look at a run that has ended: `is_over` is asked until it holds."""

    def __init__(
        self, db: Database, client: Client, campaign: CampaignId, say: Callable[[str], None]
    ) -> None:
        self._db = db
        self._client = client
        self._campaign = campaign
        self._say = say
        self._seen = Alive()
        self._changed_at = self._said_at = 0.0
        self._cancelled: set[str] = set()

    async def is_over(self) -> bool:
        """Nothing of it lives, or nothing has changed for `STILL_S`, which is said. Raises
        DatabaseError."""
        record = await campaigns.get(self._db, self._campaign)
        if record.status not in campaigns.ENDS:
            return True
        try:
            seen = await look(self._db, self._client, self._campaign)
            await self._cancel(seen)
        except RPCError as error:
            seen = self._seen
            self._tell(f"Temporal does not answer: {error.message}")
        now = time.monotonic()
        if seen != self._seen or not self._changed_at:
            self._seen, self._changed_at = seen, now
        if not seen:
            return True
        if now - self._changed_at > STILL_S:
            self._say(
                f"{self._campaign} {record.status}: {seen} did not end within {STILL_S:.0f} s; "
                "the next command that brings workers ends them"
            )
            return True
        self._tell(f"{self._campaign} {record.status}: waiting until {seen} ended")
        return False

    async def _cancel(self, seen: Alive) -> None:
        """Cancel what the run's own workflow did not: those of one that finished, or that was
        terminated. Its own ends by itself."""
        for id in seen.workflows.keys() - self._cancelled - {seen.own}:
            self._cancelled.add(id)
            try:
                await self._client.get_workflow_handle(id).cancel()
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise

    def _tell(self, sentence: str) -> None:
        now = time.monotonic()
        if not self._said_at or now - self._said_at > SAY_EVERY_S:
            self._said_at = now
            self._say(sentence)
