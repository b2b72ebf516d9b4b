"""Leases: work that one process at a time does, and what happens when that one stands still.

Invariants: a lease is a row that its holder renews. It is taken from a holder that gave it back,
that ended on this machine, or that was silent for LEASE_SILENT_S. A holder that finds itself
replaced, or could not renew for as long, loses its block with LeaseLost. No transaction stays open
meanwhile: a frozen process holds nothing in Postgres. In a process any number of blocks share one
lease.

The trainer's own lease, whose epoch fences its writes, is `training.trainers`.
"""

import asyncio
import os
import socket
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import delete, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert

from infra.db.database import Database
from infra.db.tables.columns import seconds
from infra.db.tables.lease_rows import LeaseRow
from infra.db.tables.store_rows import StoreRow
from infra.process_start import has_ended, this_process
from mainspring.errors import DatabaseError, ServiceError
from mainspring.ids import CampaignId
from mainspring.protocol.timeouts import LEASE_RENEW_S, LEASE_SILENT_S
from mainspring.status import FaultKind
from mainspring.words.figures import duration

LOOK_S = 0.2
"""Between two looks at a lease that another process holds."""
SWEEP = "sweep"


class LeaseHeld(ServiceError):
    """Another process, which renews it, has had the lease for longer than this one waits."""

    fault = FaultKind.ENGINE_BUSY


class LeaseLost(ServiceError):
    """This process did not renew its lease in time: it stood still, or Postgres did not answer."""

    fault = FaultKind.ENGINE_BUSY


@dataclass(frozen=True, slots=True)
class Holder:
    owner: str
    """Host and process id, for people."""
    process: str
    held_s: float
    silent_s: float
    """Since it last renewed."""

    @property
    def is_gone(self) -> bool:
        return self.silent_s > LEASE_SILENT_S or has_ended(self.process)


def publishing(campaign: CampaignId) -> str:
    """Name of the lease of the process that loads weights into a campaign's engines."""
    return f"publishing/{campaign}"


def devices(campaign: CampaignId) -> str:
    """Name of the lease of the trainer whose ranks have the devices that a campaign's engines have
    at other times."""
    return f"devices/{campaign}"


class ProcessLease:
    """One named lease, for one process."""

    def __init__(self, db: Database, name: str, *, wait_s: float = 0.0) -> None:
        """`wait_s`: how long to wait for another process."""
        self.name = name
        self._db = db
        self._wait_s = wait_s
        self._entering = asyncio.Lock()
        self._token = ""
        self._blocks: set[asyncio.Timeout] = set()
        self._keeping: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Raises LeaseHeld; LeaseLost, at the block's next wait after the lease was lost;
        DatabaseError."""
        async with self._entering:
            if not self._blocks:
                await self._take()
            block = asyncio.timeout(None)
            self._blocks.add(block)  # no await before it is entered: a loss must find it
        try:
            async with block:
                yield
        except TimeoutError:
            if not block.expired():
                raise
            raise LeaseLost(
                f"lease {self.name} was lost: this process did not renew it for "
                f"{LEASE_SILENT_S:.0f} s",
                remedy="it stood still, or Postgres did not answer; the work is tried again",
            ) from None
        finally:
            # No await before the count is right: a cancelled block must not keep the lease.
            self._blocks.discard(block)
            if not self._blocks:
                await asyncio.shield(self._give_back())

    async def _take(self) -> None:
        self._token = uuid.uuid4().hex
        start = time.monotonic()
        try:
            while not await _take(self._db, self.name, self._token):
                if time.monotonic() - start >= self._wait_s:
                    raise await self._refusal()
                await asyncio.sleep(LOOK_S)
        except asyncio.CancelledError:
            await asyncio.shield(self._give_back())  # it may have been written
            raise
        self._keeping = asyncio.create_task(self._keep(self._token))

    async def _refusal(self) -> LeaseHeld:
        leases = await holders(self._db, [self.name])
        if self.name not in leases:
            return LeaseHeld(f"lease {self.name} is taken in turns")
        by = leases[self.name]
        return LeaseHeld(
            f"lease {self.name} is held by {by.owner} (for {duration(by.held_s)})",
            remedy=f"look at the log of {by.owner}: it works, and has not ended what it began",
        )

    async def _keep(self, token: str) -> None:
        """Renew until cancelled or lost; then end the blocks."""
        renewed = time.monotonic()
        is_mine = True
        while is_mine:
            await asyncio.sleep(LEASE_RENEW_S)
            # Its own clock first: after a freeze another holder may have begun.
            is_mine = time.monotonic() - renewed < LEASE_SILENT_S
            try:
                if is_mine and (is_mine := await _renew(self._db, self.name, token)):
                    renewed = time.monotonic()
            except DatabaseError as error:
                _warn("lease not renewed", lease=self.name, reason=error.message)
        _warn("lease lost", lease=self.name)
        now = asyncio.get_running_loop().time()
        for block in self._blocks:
            block.reschedule(now)

    async def _give_back(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None
        own_row = (LeaseRow.name == self.name, LeaseRow.token == self._token)
        try:
            async with self._db.statement() as connection:
                await connection.execute(delete(LeaseRow).where(*own_row))
        except DatabaseError as error:
            # Silent from now on, it is free after LEASE_SILENT_S.
            _warn("lease not given back", lease=self.name, reason=error.message)


@asynccontextmanager
async def sweep_turn(db: Database, every: timedelta) -> AsyncIterator[bool]:
    """Take a turn at sweeping: True for one caller, once in `every`; the turn is over when
    the block ends, and counts as taken only when it ends without an error. Raises LeaseLost."""
    async with AsyncExitStack() as turn:
        is_mine = await _is_due(db, every)
        if is_mine:
            try:
                await turn.enter_async_context(ProcessLease(db, SWEEP).held())
                is_mine = await _is_due(db, every)  # another one may have ended its turn just now
            except LeaseHeld:
                is_mine = False
        yield is_mine
        if is_mine:
            async with db.transaction() as connection:
                await connection.execute(update(StoreRow).values(swept_at=func.clock_timestamp()))


async def _is_due(db: Database, every: timedelta) -> bool:
    was_long_ago = or_(StoreRow.swept_at.is_(None), StoreRow.swept_at < func.now() - every)
    async with db.statement() as connection:
        return await connection.scalar(select(StoreRow.id).where(was_long_ago)) is not None


async def holders(db: Database, names: Sequence[str]) -> dict[str, Holder]:
    """Holders of those leases that have one, by name. Raises DatabaseError."""
    ages = [seconds(func.clock_timestamp() - at) for at in (LeaseRow.since, LeaseRow.seen_at)]
    query = select(LeaseRow.name, LeaseRow.owner, LeaseRow.process, *ages)
    async with db.statement() as connection:
        rows = await connection.execute(query.where(LeaseRow.name.in_(names)))
        return {row[0]: Holder(*row[1:]) for row in rows}


async def _take(db: Database, name: str, token: str) -> bool:
    holder = (await holders(db, [name])).get(name)
    if holder is not None and not holder.is_gone:
        return False
    silent = LeaseRow.seen_at < func.now() - timedelta(seconds=LEASE_SILENT_S)
    ended = LeaseRow.process == (holder.process if holder else "")
    values = {
        "token": token,
        "owner": f"{socket.gethostname()} pid {os.getpid()}",
        "process": this_process(),
    }
    statement = (
        insert(LeaseRow)
        .values(values | {"name": name})
        .on_conflict_do_update(
            index_elements=[LeaseRow.name],
            set_=values | {"since": func.now(), "seen_at": func.now()},
            where=or_(silent, ended),
        )
        .returning(LeaseRow.token)
    )
    async with db.statement() as connection:
        return await connection.scalar(statement) == token


async def _renew(db: Database, name: str, token: str) -> bool:
    own_row = (LeaseRow.name == name, LeaseRow.token == token)
    async with db.statement() as connection:
        renewed = await connection.execute(
            update(LeaseRow).where(*own_row).values(seen_at=func.now())
        )
    return bool(renewed.rowcount)


def _warn(event: str, **fields: object) -> None:
    import structlog  # screens, which hold no lease, do without it: it takes long to load

    structlog.get_logger().warning(event, **fields)
