"""How far the clocks of machines are from the database's: this machine's, and those of nodes.

No decision is made by them; people read them in logs, and tasks may look at the date. Read by the
command line, which names those that are off.
"""

from infra.db.database import Database
from infra.db.nodes import nodes
from infra.db.store import clock_off_s
from mainspring.status import NodeStatus

THIS_MACHINE = "this machine"
_GONE = (NodeStatus.STOPPED, NodeStatus.LOST)
"""Neither polls any more; what it told of its clock is long past."""


async def clocks(db: Database) -> dict[str, float]:
    """Seconds that each machine's clock is ahead of the database's, negative behind, by the words
    that name the machine: this one first, then each node that lives. Raises DatabaseError."""
    return {THIS_MACHINE: await clock_off_s(db)} | {
        f"node {each.said.id}": each.clock_off_s
        for each in await nodes.list_nodes(db)
        if each.status not in _GONE
    }
