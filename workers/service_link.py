"""A worker's tie to its services: notices that they moved, or that a stranger answers for them.

Invariants: a worker whose home records other addresses, or whose store another namespace, starts
anew in the same process id and reads them; it never stays with a Temporal namespace of another
store. Services that are away are waited for. Used by the worker processes.
"""

import asyncio
import os
import sys
from typing import NoReturn

import structlog
from temporalio.client import Client
from temporalio.common import MetricMeter
from temporalio.service import RPCError

from infra.db.database import Database
from infra.db.store import StoreId, clock_off_s, identity, namespace
from infra.temporal.connection import ForeignNamespace, check_owner, connect
from infra.temporal.log import runtime
from mainspring.config.settings import Settings, load_settings
from mainspring.errors import DatabaseError, ServiceError
from mainspring.words.figures import clock_told

LOOK_EVERY_S = 2.0
ASK_EVERY_S = 10.0
"""Between two looks at the namespace's owner: a call to Temporal and a query, of each worker."""

log = structlog.get_logger()


class ServicesMoved(ServiceError):
    """The home or the store records other addresses than this process connected to."""


class ServiceLink:
    def __init__(self, settings: Settings, client: Client, store: StoreId, db: Database) -> None:
        self.settings = settings
        self.client = client
        self.store = store
        self._db = db

    @classmethod
    async def open(
        cls,
        settings: Settings,
        db: Database,
        *,
        name: str | None = None,
    ) -> "ServiceLink":
        """`name`: of the process, for Temporal. Raises TemporalError, ForeignNamespace,
        OtherNamespace, DatabaseError and ConfigError."""
        address = settings.metrics_address
        client = await connect(settings, db, name=name, metrics_address=address)
        if clock_note := clock_told(await clock_off_s(db)):
            log.warning("this machine's clock is off", told=clock_note)
        return cls(settings, client, await identity(db), db)

    @property
    def meter(self) -> MetricMeter:
        """For what the process counts; without an address for Prometheus nothing is kept."""
        return runtime(self.settings.metrics_address).metric_meter

    def announce(self, role: str, queue: str, **more: object) -> None:
        """The first line of a worker's log: what it is and whom it works for."""
        log.info(
            f"{role} is up",
            queue=queue,
            **more,
            temporal=self.settings.temporal_address,
            namespace=self.client.namespace,
            database=self._db.name,
            store=self.store[:8],
            ui=self.settings.in_namespace(self.client.namespace).temporal_link,
        )

    async def run_forever(self) -> None:
        """Returns never. Raises ServicesMoved and ForeignNamespace."""
        waited_s = 0.0
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.check_addresses()
            waited_s += LOOK_EVERY_S
            if waited_s >= ASK_EVERY_S:
                waited_s = 0.0
                await self.check()

    async def check(self) -> None:
        """Raises ServicesMoved and ForeignNamespace."""
        self.check_addresses()
        try:
            async with asyncio.timeout(ASK_EVERY_S):
                await check_owner(self.client, self.settings.temporal_address, self.store)
                # After it: a stranger at Temporal's address is noticed without the database.
                if await namespace(self._db) not in (None, self.client.namespace):
                    raise _moved(f"the work of database {self._db.name}")
        except (DatabaseError, RPCError, TimeoutError):
            return  # away for now
        except ForeignNamespace:
            self.check_addresses()
            raise

    def check_addresses(self) -> None:
        """Raises ServicesMoved."""
        refuse_moved(self.settings)


def refuse_moved(settings: Settings) -> None:
    """Raises ServicesMoved when the home records other addresses than `settings` has."""
    now = load_settings(settings.home)
    for name in ("database_url", "temporal_address", "temporal_namespace"):
        if getattr(now, name) != getattr(settings, name):
            what = "Postgres" if name == "database_url" else "Temporal"
            raise _moved(f"{what} of {settings.home}")


def _moved(what: str) -> ServicesMoved:
    return ServicesMoved(
        f"{what} has moved",
        remedy="run the same command again: it reads the new address and resumes",
    )


def start_anew(moved: ServicesMoved) -> NoReturn:
    """Replace this program by itself, as it was called; its supervisor sees no end of it."""
    log.warning("restarting with the new addresses", reason=moved.message)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
