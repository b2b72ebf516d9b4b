"""One process at a time loads weights into a campaign's engines, and each load is made once."""

import asyncio
from pathlib import Path

import pytest
from engine_stub import engine_stub
from sqlalchemy import text
from tiny_model import save_tiny_model

from infra.db import publishing_lease
from infra.db.database import Database
from infra.db.publishing_lease import PublishingLease
from infra.policy.client import SGLangClient
from infra.policy.weight_label import WeightLabel
from mainspring.errors import EngineError
from mainspring.ids import CampaignId
from tests.waiting import until

CAMPAIGN = CampaignId("leased")


async def test_two_processes_take_turns_and_one_shares_it(db: Database) -> None:
    first, second, other = (
        PublishingLease(db, CampaignId(name)) for name in ("leased", "leased", "another")
    )
    entered = asyncio.Event()

    async def wait_for_it() -> None:
        async with second.held():
            entered.set()

    async with first.held(), other.held():
        async with first.held():
            waiting = asyncio.create_task(wait_for_it())
            await asyncio.sleep(3 * publishing_lease.LOOK_S)
            assert not entered.is_set()
        await asyncio.sleep(2 * publishing_lease.LOOK_S)
        assert not entered.is_set(), "the outer load still runs"
    await waiting
    assert entered.is_set()


async def test_a_cancelled_load_and_a_lost_connection_free_it(db: Database) -> None:
    first, second = PublishingLease(db, CAMPAIGN), PublishingLease(db, CAMPAIGN)

    async def load() -> None:
        async with first.held():
            await asyncio.sleep(60)

    loading = asyncio.create_task(load())
    await until(lambda: first._num_holders == 1)
    loading.cancel()
    async with second.held():
        pass
    lost = asyncio.create_task(load())
    await until(lambda: first._num_holders == 1)
    async with db.transaction() as connection:  # as if its host vanished
        await connection.execute(
            text("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
        )
    async with second.held():
        assert not lost.done()
    lost.cancel()


async def test_a_process_that_never_ends_its_load_is_named(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing_lease, "WAIT_S", 0.3)
    first, second = PublishingLease(db, CAMPAIGN), PublishingLease(db, CAMPAIGN)
    async with first.held():
        with pytest.raises(EngineError, match="campaign leased: another process has been loading"):
            async with second.held():
                pass


async def test_of_two_processes_that_find_old_weights_one_loads(
    db: Database, tmp_path: Path
) -> None:
    """And the one that waited with an older version does not take the newer one away."""
    model = save_tiny_model(tmp_path / "model")

    async def is_known(label: WeightLabel) -> bool:
        return label.uid in ("a", "b")

    with engine_stub() as stub:
        stub.info = {"weight_version": "0"}
        stub.on_update = lambda body: {"weight_version": body["weight_version"]}
        clients = [
            SGLangClient([stub.url], is_known=is_known, alone=PublishingLease(db, CAMPAIGN).held)
            for _ in range(3)
        ]
        loads = await asyncio.gather(
            *(client.reconcile(stub.url, model, WeightLabel(2, "b")) for client in clients)
        )
        assert sorted(loads) == [False, False, True]
        assert not await clients[0].reconcile(stub.url, model, WeightLabel(1, "a"))
        assert stub.info["weight_version"] == "2-b"
        # A number that is higher and not the campaign's is replaced.
        stub.info = {"weight_version": "7-x"}
        assert await clients[0].reconcile(stub.url, model, WeightLabel(2, "b"))
        for client in clients:
            await client.aclose()
