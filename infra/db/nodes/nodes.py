"""Nodes: the container hosts, as each described itself at its last beat.

Invariants: a node writes everything of its row but `draining`, which operators write and which
outlives the node's process; "now" is the database's clock; a node is drained only when it has heard
that it should and no lease of it is open. Read by the command line, and to find a node that has a
task's image.
"""

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from sqlalchemy import Double, any_, case, cast, delete, exists, func, literal, or_, select, update
from sqlalchemy.dialects.postgresql import insert

from infra.db.database import Database
from infra.db.tables.columns import seconds
from infra.db.tables.event_writes import Event, write
from infra.db.tables.models import NodeRow, SandboxRow
from mainspring.errors import UsageError
from mainspring.ids import NodeId
from mainspring.protocol.timeouts import NODE_LOST_AFTER_S
from mainspring.status import EventKind, NodeRefusal, NodeStatus, SandboxPurpose, SandboxStatus

TOLD_WITHIN = timedelta(hours=1)
"""A node that was lost before is no news: its event may have been pruned."""
FORGOTTEN_AFTER = timedelta(days=7)
"""Machines that come and go would fill the listing."""
_OFFICIAL = ("docker.io/library/", "docker.io/")
"""Beginnings of an image's name that Docker leaves out when it lists images."""
_OPEN_LEASES = (SandboxRow.node == NodeRow.id, SandboxRow.status == SandboxStatus.OPEN)


@dataclass(frozen=True, slots=True)
class NodeBeat:
    """A node's report of itself."""

    id: NodeId
    capacity: int
    num_open: int
    """Agents' sandboxes alive or being opened."""
    refusal: NodeRefusal | None
    """Why it takes no new sandbox; None: it does."""
    backends: list[str]
    images: list[str]
    """Names of the images present, as Docker lists them."""
    disk_free_mb: int
    memory_free_mb: int
    version: str
    """Version of the program it runs."""
    running_s: float
    """Since its process began."""
    clock: datetime | None
    """Time by its own clock; None: an older version told none."""


@dataclass(frozen=True, slots=True)
class NodeRecord:
    said: NodeBeat
    draining: bool
    """It was asked to drain; it has heard so when `said.refusal` is that, too."""
    seen_at: datetime
    seen_s: float
    """Seconds since then."""
    num_leased: int
    """Its sandboxes with an open lease, gradings' too."""
    num_open: int
    """Agents' sandboxes among these. What the node told at its last beat may be long past."""
    has_stopped: bool
    """Its process ended in order."""

    @property
    def started_at(self) -> datetime:
        return self.seen_at - timedelta(seconds=self.said.running_s)

    @property
    def clock_off_s(self) -> float:
        """How far its clock is ahead of the database's, negative behind; 0: it has not told."""
        return 0.0 if self.said.clock is None else (self.said.clock - self.seen_at).total_seconds()

    @property
    def status(self) -> NodeStatus:
        if self.has_stopped:
            return NodeStatus.STOPPED
        if self.seen_s > NODE_LOST_AFTER_S:
            return NodeStatus.LOST
        if not self.draining:
            return NodeStatus.UP
        says_draining = self.said.refusal is NodeRefusal.DRAINING
        empty = self.num_leased == 0 and self.said.num_open == 0
        return NodeStatus.DRAINED if says_draining and empty else NodeStatus.DRAINING


async def beat(db: Database, report: NodeBeat) -> bool:
    """Write what the node reports; whether it is asked to drain."""
    values = asdict(report)
    began = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, values.pop("running_s"))
    row = insert(NodeRow).values({**values, "started_at": began})
    # Equal names are left where they lie: a thousand of them would be 10 kB of WAL at each beat.
    is_same = NodeRow.images == row.excluded.images
    images = case((is_same, NodeRow.images), else_=row.excluded.images)
    changed = {
        **values,
        "started_at": began,
        "images": images,
        "seen_at": func.now(),
        "stopped_at": None,
    }
    async with db.transaction() as connection:
        draining = await connection.scalar(
            row.on_conflict_do_update(index_elements=[NodeRow.id], set_=changed).returning(
                NodeRow.draining
            )
        )
    return bool(draining)


async def say_goodbye(db: Database, node: NodeId) -> None:
    """The node's process ends in order; its next beat, if any, is of another one."""
    async with db.transaction() as connection:
        await connection.execute(
            update(NodeRow).where(NodeRow.id == node).values(stopped_at=func.now())
        )


async def list_nodes(db: Database) -> list[NodeRecord]:
    """Every node that is not forgotten, by id."""
    num_leased = select(func.count()).where(*_OPEN_LEASES).scalar_subquery()
    of_agents = SandboxRow.purpose == SandboxPurpose.AGENT
    num_open = select(func.count()).where(*_OPEN_LEASES, of_agents).scalar_subquery()
    async with db.transaction() as connection:
        rows = await connection.execute(
            select(
                NodeRow.draining,
                NodeRow.seen_at,
                seconds(func.now() - NodeRow.seen_at),
                num_leased,
                num_open,
                NodeRow.stopped_at.is_not(None),
                NodeRow.id,
                NodeRow.capacity,
                NodeRow.num_open,
                NodeRow.refusal,
                NodeRow.backends,
                NodeRow.images,
                NodeRow.disk_free_mb,
                NodeRow.memory_free_mb,
                NodeRow.version,
                seconds(NodeRow.seen_at - NodeRow.started_at),
                NodeRow.clock,
            ).order_by(NodeRow.id)
        )
        return [NodeRecord(NodeBeat(*row[6:]), *row[:6]) for row in rows]


async def forget_gone(db: Database) -> int:
    """Forget nodes that are silent for FORGOTTEN_AFTER and hold nothing: how many there were. One
    that comes back after all is a new one, and does not drain."""
    async with db.transaction() as connection:
        deleted = await connection.execute(
            delete(NodeRow).where(
                NodeRow.seen_at < func.now() - FORGOTTEN_AFTER,
                ~exists().where(*_OPEN_LEASES),
            )
        )
    return deleted.rowcount


async def silent(db: Database) -> dict[NodeId, datetime]:
    """Nodes that workflows wait for no more, though they did not end in order, each with the time
    of its last beat."""
    lost = NodeRow.seen_at < func.now() - timedelta(seconds=NODE_LOST_AFTER_S)
    lately = NodeRow.seen_at > func.now() - TOLD_WITHIN
    async with db.statement() as connection:
        rows = await connection.execute(
            select(NodeRow.id, NodeRow.seen_at).where(lost, lately, NodeRow.stopped_at.is_(None))
        )
        return {NodeId(row.id): row.seen_at for row in rows}


async def tell_lost(db: Database, node: NodeId, seen_at: datetime) -> None:
    """Write the event of a node that was lost after its beat at `seen_at`, once."""
    num_open = select(func.count()).where(
        SandboxRow.node == node,
        SandboxRow.status == SandboxStatus.OPEN,
        SandboxRow.purpose == SandboxPurpose.AGENT,
    )
    async with db.transaction() as connection:
        number = await connection.scalar(num_open) or 0
        text = f"node {node} lost: not heard of since {seen_at:%H:%M:%S} UTC, {number} sandboxes"
        key = f"node lost/{node}/{seen_at.isoformat()}"
        data = {"num_open": number}
        await write(connection, Event(EventKind.NODE_LOST, node, text, data=data, key=key))


async def set_draining(db: Database, node: NodeId, draining: bool, by: str = "") -> None:
    """Ask a node to drain, or to resume; it hears at its next beat. `by`: who gives the command.
    Raises UsageError."""
    async with db.transaction() as connection:
        updated = await connection.scalar(
            update(NodeRow)
            .where(NodeRow.id == node)
            .values(draining=draining)
            .returning(NodeRow.id)
        )
        if updated is not None:
            text = f"node {node} {'drained' if draining else 'takes new work again'}"
            await write(connection, Event(EventKind.COMMAND, node, text, by=by))
            return
        nodes = list(await connection.scalars(select(NodeRow.id).order_by(NodeRow.id)))
    raise UsageError(
        f"no node {node} has registered",
        remedy=f"known nodes: {', '.join(nodes)}"
        if nodes
        else "none has; `mainspring worker sandbox` starts one",
    )


async def with_image(db: Database, image: str) -> NodeId | None:
    """The least full of the living nodes that have the image and take new sandboxes."""
    async with db.transaction() as connection:
        node = await connection.scalar(
            select(NodeRow.id)
            .where(
                or_(*(literal(name) == any_(NodeRow.images) for name in _spellings(image))),
                NodeRow.draining.is_(False),
                NodeRow.refusal.is_(None),
                NodeRow.stopped_at.is_(None),
                NodeRow.seen_at > func.now() - timedelta(seconds=NODE_LOST_AFTER_S),
            )
            .order_by(cast(NodeRow.num_open, Double) / NodeRow.capacity, func.random())
            .limit(1)
        )
    return None if node is None else NodeId(node)


def _spellings(image: str) -> set[str]:
    """The image's name as Docker may list it: with its tag, without the official registry."""
    names = {image, *(image.removeprefix(official) for official in _OFFICIAL)}
    return names | {f"{name}:latest" for name in names}
