"""A lease has one holder, and a holder that stands still is replaced and finds out."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import pytest
from sqlalchemy import insert, update

from cli.operations.machine.embedded_stack import StackInfo
from infra.db import leases
from infra.db.database import Database
from infra.db.leases import LeaseHeld, LeaseLost, ProcessLease, sweep_turn
from infra.db.tables.lease_rows import LeaseRow
from mainspring.errors import DatabaseError
from tests.waiting import until

NAME = "tried"
HOLDER = """
import asyncio, sys
from infra.db import leases
from infra.db.database import Database
from infra.db.leases import LeaseLost, ProcessLease

leases.LEASE_RENEW_S, leases.LEASE_SILENT_S = 0.2, float(sys.argv[2])

async def hold():
    async with Database.open(sys.argv[1]) as db:
        try:
            async with ProcessLease(db, sys.argv[3]).held():
                print("holds", flush=True)
                await asyncio.sleep(600)
        except LeaseLost as lost:
            print(lost, flush=True)

asyncio.run(hold())
"""


async def test_two_take_turns_and_blocks_of_one_share_it(db: Database) -> None:
    first, second, other = (ProcessLease(db, name, wait_s=60.0) for name in (NAME, NAME, "another"))
    entered = asyncio.Event()

    async def wait_for_it() -> None:
        async with second.held():
            entered.set()

    async with first.held(), other.held():
        async with first.held():
            waiting = asyncio.create_task(wait_for_it())
            await asyncio.sleep(3 * leases.LOOK_S)
            assert not entered.is_set()
        await asyncio.sleep(2 * leases.LOOK_S)
        assert not entered.is_set(), "the outer block still runs"
    await waiting
    assert entered.is_set()
    assert await leases.holders(db, [NAME, "another"]) == {}


async def test_a_cancelled_block_frees_it_and_so_does_a_cancelled_wait(db: Database) -> None:
    first, second, third = (ProcessLease(db, NAME, wait_s=60.0) for _ in range(3))

    async def hold(lease: ProcessLease) -> None:
        async with lease.held():
            await asyncio.sleep(60)

    holding = asyncio.create_task(hold(first))
    await until(lambda: is_held(db))
    waiting = asyncio.create_task(hold(third))
    await asyncio.sleep(2 * leases.LOOK_S)
    waiting.cancel()
    holding.cancel()
    async with asyncio.timeout(60), second.held():
        pass


async def test_who_works_too_long_is_named(db: Database) -> None:
    first, second = ProcessLease(db, NAME), ProcessLease(db, NAME, wait_s=0.3)
    async with first.held():
        with pytest.raises(LeaseHeld, match=r"lease tried is held by \S+ pid \d+ \(for"):
            async with second.held():
                pass
        held = (await leases.holders(db, [NAME]))[NAME]
        assert not held.is_gone and held.held_s >= 0.3


async def test_a_holder_that_is_replaced_loses_all_its_blocks(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "LEASE_RENEW_S", 0.1)
    lease, ends = ProcessLease(db, NAME), []

    async def hold() -> None:
        try:
            async with lease.held():
                await asyncio.sleep(60)
        except LeaseLost as lost:
            ends.append(lost.message)

    holding = [asyncio.create_task(hold()) for _ in range(2)]
    await until(lambda: len(lease._blocks) == 2)
    async with db.transaction() as connection:  # as another process takes it over
        await connection.execute(update(LeaseRow).values(token="another"))
    async with asyncio.timeout(60):
        await asyncio.gather(*holding)
    assert [end.startswith("lease tried was lost") for end in ends] == [True, True]
    assert await is_held(db), "another one's lease is not given back"


async def test_a_store_that_does_not_answer_costs_the_lease_after_a_while(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "LEASE_RENEW_S", 0.1)
    monkeypatch.setattr(leases, "LEASE_SILENT_S", 2.0)
    failures = []

    async def fails(*_: object) -> bool:
        failures.append(1)
        raise DatabaseError("away")

    with pytest.raises(LeaseLost):
        async with asyncio.timeout(60), ProcessLease(db, NAME).held():
            monkeypatch.setattr(leases, "_renew", fails)
            await asyncio.sleep(60)
    assert len(failures) >= 3, "it was tried again"


async def test_a_timeout_within_the_block_stays_one(db: Database) -> None:
    with pytest.raises(TimeoutError):
        async with ProcessLease(db, NAME).held():
            raise TimeoutError
    assert not await is_held(db)


@pytest.mark.parametrize("silent_s", [1.0, 600.0])
async def test_a_killed_holder_is_seen_by_its_process_and_a_frozen_one_by_its_silence(
    stack: StackInfo, monkeypatch: pytest.MonkeyPatch, silent_s: float
) -> None:
    is_frozen = silent_s == 1.0
    name = f"tried {silent_s}"
    monkeypatch.setattr(leases, "LEASE_SILENT_S", silent_s)
    async with Database.open(stack.database_url) as db, holder(stack, silent_s, name) as process:
        lease = ProcessLease(db, name, wait_s=60.0)
        process.send_signal(signal.SIGSTOP if is_frozen else signal.SIGKILL)
        async with asyncio.timeout(90), lease.held():
            if is_frozen:
                process.send_signal(signal.SIGCONT)
                assert process.stdout is not None
                while b"was lost" not in (line := await process.stdout.readline()):
                    assert line, "it ended without a word"
                assert await is_held(db, name), "the one that woke up gave back another's lease"


@asynccontextmanager
async def holder(
    stack: StackInfo, silent_s: float, name: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HOLDER, stack.database_url, str(silent_s), name),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"holds\n"
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_a_turn_at_sweeping_outlives_no_frozen_process(db: Database) -> None:
    async with db.transaction() as connection:
        await connection.execute(
            insert(LeaseRow).values(
                name=leases.SWEEP, token="t", owner="other", process="elsewhere/1/1.00"
            )
        )
    every = timedelta(0)
    async with sweep_turn(db, every) as mine:
        assert not mine, "the other one renewed it just now"
    async with db.transaction() as connection:
        long_ago = LeaseRow.seen_at - timedelta(seconds=leases.LEASE_SILENT_S + 1)
        await connection.execute(update(LeaseRow).values(seen_at=long_ago))
    async with sweep_turn(db, every) as mine:
        assert mine
    assert not await is_held(db, leases.SWEEP)


async def is_held(db: Database, name: str = NAME) -> bool:
    return name in await leases.holders(db, [name])
