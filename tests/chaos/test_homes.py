"""Homes on one machine never meet: ports move or are swapped, and workers follow their own."""

import asyncio

import pytest
from temporalio.service import RPCError

from cli.operations.machine.embedded_stack import StackInfo, down, temporary, up
from infra.db.database import Database
from infra.db.store import identity, namespace
from infra.stack.ports import Forced, pick
from infra.temporal.connection import ForeignNamespace, connect
from mainspring.config.settings import load_settings
from tests.polling import pollers, rollout_worker
from tests.waiting import until


async def polls(info: StackInfo, pid: int) -> bool:
    try:
        return await pollers(info.temporal_address, pid) == {info.temporal_namespace}
    except (RPCError, RuntimeError):
        return False


def port(info: StackInfo) -> int:
    return int(info.temporal_address.rpartition(":")[2])


@pytest.mark.chaos
@pytest.mark.timeout(600)
async def test_a_worker_follows_its_home_when_two_homes_swap_ports() -> None:
    async with temporary("mainspring-one-") as one, temporary("mainspring-two-") as two:
        assert one.temporal_namespace != two.temporal_namespace
        async with rollout_worker(one.home) as worker:
            await until(lambda: polls(one, worker.pid))
            await down(one.home)
            await down(two.home)
            moved = await up(one.home, Forced(temporal=port(two)))
            other = await up(two.home, Forced(temporal=port(one)))
            assert moved.temporal_address == two.temporal_address
            assert moved.temporal_namespace == one.temporal_namespace
            await until(lambda: polls(moved, worker.pid))
            assert worker.returncode is None, "the same process, which nobody started again"
            assert await pollers(other.temporal_address, worker.pid) == set()


@pytest.mark.chaos
@pytest.mark.timeout(600)
async def test_a_worker_that_meets_a_stranger_polls_nothing_and_ends_with_a_reason() -> None:
    async with temporary("mainspring-one-") as one, temporary("mainspring-two-") as two:
        async with rollout_worker(one.home) as worker:
            await until(lambda: polls(one, worker.pid))
            await down(one.home)
            await down(two.home)
            stranger = await up(two.home, Forced(temporal=port(one)))
            await asyncio.wait_for(worker.wait(), 120)
            assert await pollers(stranger.temporal_address, worker.pid) == set()
        assert worker.returncode == 3
        said = (one.home / "logs" / "worker.log").read_text()
        assert f"has no namespace {one.temporal_namespace}" in said
        assert "Traceback" not in said


@pytest.mark.chaos
@pytest.mark.timeout(600)
async def test_a_worker_follows_a_moved_database() -> None:
    async with temporary("mainspring-one-") as one, rollout_worker(one.home) as worker:
        await until(lambda: polls(one, worker.pid))
        await down(one.home)
        moved = await up(one.home, Forced(postgres=pick()))
        assert moved.database_url != one.database_url

        async def is_connected() -> bool:
            async with Database.open(moved.database_url) as db, db.transaction() as connection:
                found = await connection.exec_driver_sql(
                    "SELECT count(*) FROM pg_stat_activity "
                    "WHERE application_name LIKE 'mainspring%' AND pid <> pg_backend_pid()"
                )
            return bool(found.scalar_one())

        await until(is_connected)
        await until(lambda: polls(moved, worker.pid))
        assert worker.returncode is None


async def test_a_namespace_belongs_to_the_first_store_that_connects(
    stack: StackInfo, fresh_database: str
) -> None:
    """As with services of a team's own, where two databases may be given one namespace."""
    from migrations import upgrade

    await asyncio.to_thread(upgrade.upgrade, fresh_database)
    settings = load_settings(stack.home)
    async with Database.open(stack.database_url) as db, Database.open(fresh_database) as fresh:
        mine, others = await identity(db), await identity(fresh)
        assert mine != others
        await connect(settings, db)
        await connect(settings, db)
        with pytest.raises(ForeignNamespace) as refused:
            await connect(settings, fresh)
        assert await namespace(fresh) is None, "what was refused is not recorded"
    assert mine[:8] in refused.value.message and others[:8] in refused.value.message
    assert settings.temporal_namespace in refused.value.message
    assert "MAINSPRING_TEMPORAL_NAMESPACE" in refused.value.remedy
