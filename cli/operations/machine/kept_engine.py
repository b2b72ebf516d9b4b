"""`mainspring serve`: keeps one engine running, and its place in a campaign's fleet.

Invariants: an engine that ends, or stands still after it had answered, is started again; one that
never answered ends the command with its own exit code, and one that cannot stay up ends it after
MAX_DEATHS tries; the engine never outlives this process. An engine is a member of a fleet only
after it was found to fit the campaign; when its place is taken, by a person or by a later process
of its name, it ends.
"""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from cli.operations.machine import campaign_engines
from cli.operations.machine.fork_request import die_with_parent
from cli.operations.machine.process_ends import how_it_ended
from infra.db.connect import open_database
from infra.db.database import Database
from infra.db.naming import campaign_named
from infra.db.nodes import engines
from infra.db.nodes.engines import LOST_AFTER_S, EngineLook
from infra.policy.engines.dialects.choice import dialect_of
from infra.policy.engines.engine_look import look
from infra.policy.engines.wire import Wire
from mainspring.config.policy import url_fault
from mainspring.config.settings import load_settings
from mainspring.errors import DatabaseError, UsageError, WorkFailed
from mainspring.ids import CampaignId
from mainspring.status import PolicyApi

LOOK_S = 1.0
STANDS_STILL_S = 60.0
"""An engine that answered, and does not for so long, is killed and started again."""
MAX_DEATHS = 5
"""Ends in a row of an engine that did not answer in between."""
DELAYS_S = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Before each start after such an end."""
STOP_TIMEOUT_S = 15.0
TAKEN_S = LOST_AFTER_S + 3.0
"""To wait for a name whose process may have ended: it counts as alive for some seconds."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class EngineCommand:
    arguments: Sequence[str]
    environment: Mapping[str, str]
    url: str
    """Address at which this machine reaches it."""
    api_key: str = ""
    api: PolicyApi = PolicyApi.SGLANG


class FleetPlace:
    """The engine's place in the fleet of a campaign."""

    def __init__(
        self,
        db: Database,
        campaign: CampaignId,
        name: str,
        url: str,
        by: str,
        check: Callable[[str], Awaitable[None]],
        say: Say,
    ) -> None:
        """`url`: under which the campaign's processes reach it; `check`: raises UsageError for
        an engine, at its address here, that the campaign cannot use."""
        self._db = db
        self._campaign = campaign
        self._name = name
        self._url = url
        self._by = by
        self._check = check
        self._say = say
        self._life = ""
        self._is_stored = True

    async def report(self, at: str, seen: EngineLook) -> None:
        """Take the place, or tell how the engine is. Raises UsageError when it cannot be had or is
        gone."""
        try:
            if self._life:
                if not await engines.report(self._db, self._campaign, self._name, self._life, seen):
                    raise UsageError(
                        f"engine {self._name} is not a member of campaign {self._campaign} any "
                        "more: it was removed, or another process has its name",
                        remedy=f"`mainspring engine list {self._campaign}` lists the members; the "
                        "same command joins again",
                    )
            elif not seen.fault:
                await self._enter(at, seen)
            if not self._is_stored:
                self._say("the database answers again")
            self._is_stored = True
        except DatabaseError as error:
            if self._is_stored:
                self._say(f"the engine keeps serving; its state is not stored: {error.message}")
            self._is_stored = False

    async def _enter(self, at: str, seen: EngineLook) -> None:
        await self._check(at)
        until = time.monotonic() + TAKEN_S
        while True:
            try:
                self._life = await engines.register(
                    self._db, self._campaign, self._name, self._url, seen, self._by
                )
                break
            except UsageError:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(LOOK_S)
        self._say(f"joined campaign {self._campaign} as engine {self._name} at {self._url}")

    async def leave(self) -> None:
        if self._life:
            with suppress(DatabaseError):  # the place is free when it has been silent for seconds
                await engines.leave(self._db, self._campaign, self._name, self._life)


class KeptEngine:
    def __init__(self, command: EngineCommand, say: Say, place: FleetPlace | None = None) -> None:
        self._command = command
        self._say = say
        self._place = place
        self._answered = 0.0
        """When this life last answered; 0: never."""

    async def run(self) -> int:
        """Until SIGINT or SIGTERM; the exit code of an engine that never answered, and has told
        why, else 0. Raises WorkFailed and UsageError."""
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        wire = Wire(STANDS_STILL_S, self._command.api_key, dialect_of(self._command.api))
        try:
            return await self._keep(wire, stopped)
        finally:
            await wire.aclose()
            if self._place is not None:
                await self._place.leave()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    async def _keep(self, wire: Wire, stopped: asyncio.Event) -> int:
        num_deaths, ever_answered = 0, False
        while not stopped.is_set():
            self._answered = 0.0
            process = await asyncio.create_subprocess_exec(
                *self._command.arguments,
                env=dict(self._command.environment),
                stdin=asyncio.subprocess.DEVNULL,
                preexec_fn=die_with_parent,
                start_new_session=True,
            )
            try:
                await self._watch(process, wire, stopped)
            finally:
                await _stop(process)
            if stopped.is_set():
                break
            code = process.returncode or 0
            ever_answered = ever_answered or bool(self._answered)
            if not ever_answered:
                return code if code > 0 else WorkFailed.exit_code
            num_deaths = 0 if self._answered else num_deaths + 1
            if num_deaths == MAX_DEATHS:
                raise WorkFailed(
                    f"the engine ended {num_deaths} times in a row before it answered "
                    f"({how_it_ended(code)})",
                    remedy="see what it printed above",
                )
            self._say(f"the engine ended ({how_it_ended(code)}): it is started again")
            with suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), DELAYS_S[num_deaths])
        return 0

    async def _watch(
        self, process: asyncio.subprocess.Process, wire: Wire, stopped: asyncio.Event
    ) -> None:
        """Until the process has ended, stands still, or is to stop."""
        ends = [asyncio.create_task(process.wait()), asyncio.create_task(stopped.wait())]
        try:
            while not any(end.done() for end in ends):
                seen = await look(wire, self._command.url)
                if not seen.fault:
                    self._answered = time.monotonic()
                elif self._answered and time.monotonic() - self._answered > STANDS_STILL_S:
                    self._say(f"the engine stands still ({seen.fault}): it is killed")
                    return
                if self._place is not None:
                    await self._place.report(self._command.url, seen)
                await asyncio.wait(ends, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)  # one that was stopped hears of it only then
    try:
        await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
    except TimeoutError:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def run_in_campaign(
    command: EngineCommand,
    campaign: str,
    name: str,
    url: str,
    by: str,
    home: Path | None,
    say: Say,
) -> int:
    """As `KeptEngine.run`, as a member of the campaign. Raises UsageError and DatabaseError before
    the engine is started."""
    if fault := url_fault(url):
        raise UsageError(f"--address {url}: {fault}", remedy="give http://HOST:PORT")
    async with open_database(load_settings(home), pool_size=2) as db:
        record = await campaign_named(db, campaign)
        campaign_engines.require_engines(record)
        key = SecretStr(command.api_key)

        async def check(at: str) -> None:
            await campaign_engines.require_fit(db, record, at, key)

        place = FleetPlace(db, record.id, name, url, by, check, say)
        return await KeptEngine(command, say, place).run()
