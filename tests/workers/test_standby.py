"""A trainer that waits gets ready meanwhile, and only while another one works."""

import asyncio
import threading
from dataclasses import dataclass, field

import pytest

from infra import process_start
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.training import trainers
from mainspring.config.campaign import CampaignConfig
from mainspring.ids import CampaignId, campaign_id
from mainspring.training.training_faults import TrainerLost
from tests.waiting import until
from workers import standby
from workers.standby import Standby, wait_for_lease


@dataclass(slots=True)
class Backend:
    """Starts what it is told to when the test lets it."""

    may_start: threading.Event = field(default_factory=threading.Event)
    said: list[str] = field(default_factory=list)
    is_lost: bool = False

    def warm(self, config: CampaignConfig) -> None:
        self.said.append(f"starting {config.name}")
        self.may_start.wait()
        self.said.append("started")

    def is_warm(self) -> bool:
        return self.may_start.is_set()

    def check(self) -> None:
        if self.is_lost:
            raise TrainerLost("Ray's raylet ended")


@pytest.fixture
async def campaign(db: Database) -> CampaignId:
    config = CampaignConfig.model_validate({"name": "standby", "trainer": {"warm_start": {}}})
    await campaigns.create(db, config)
    return campaign_id("standby")


async def held_by_another(db: Database, campaign: CampaignId) -> int:
    """Its process cannot be seen from here."""
    lease = await trainers.take(db, campaign, owner="other", process="elsewhere/1/1.00")
    assert lease is not None
    return lease.epoch


def nothing() -> None:
    pass


async def test_it_is_ready_when_the_lease_is_released(
    db: Database, campaign: CampaignId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "SETTLED_S", 0.0)
    backend, epoch = Backend(), await held_by_another(db, campaign)
    waiting = asyncio.create_task(
        wait_for_lease(db, campaign, nothing, asyncio.Event(), Standby(db, campaign, backend))
    )
    await until(lambda: backend.said == ["starting standby"])
    await trainers.release(db, campaign, epoch)
    # Nothing else may be asked of what is being started.
    await until(lambda: _is_held(db, campaign))
    assert not waiting.done()
    backend.may_start.set()
    lease = await waiting
    assert lease is not None and lease.epoch == epoch + 1
    assert backend.said == ["starting standby", "started"]


async def _is_held(db: Database, campaign: CampaignId) -> bool:
    held = await trainers.holder(db, campaign)
    return held is not None and held.process == process_start.this_process()


async def test_a_trainer_that_starts_is_left_its_time(db: Database, campaign: CampaignId) -> None:
    backend, epoch = Backend(), await held_by_another(db, campaign)
    waiting = asyncio.create_task(
        wait_for_lease(db, campaign, nothing, asyncio.Event(), Standby(db, campaign, backend))
    )
    await asyncio.sleep(3 * standby.LOOK_S)
    assert backend.said == [] and not waiting.done()
    await trainers.release(db, campaign, epoch)
    assert await waiting is not None
    assert backend.said == []


async def test_a_signal_ends_it_once_nothing_is_being_started(
    db: Database, campaign: CampaignId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "SETTLED_S", 0.0)
    backend, epoch = Backend(), await held_by_another(db, campaign)
    stop = asyncio.Event()
    waiting = asyncio.create_task(
        wait_for_lease(db, campaign, nothing, stop, Standby(db, campaign, backend))
    )
    await until(lambda: bool(backend.said))
    stop.set()
    done, _ = await asyncio.wait([waiting], timeout=1.0)
    assert not done
    backend.may_start.set()
    assert await waiting is None
    held = await trainers.holder(db, campaign)
    assert held is not None and held.epoch == epoch and not held.released


async def test_the_end_of_its_ray_ends_it(
    db: Database, campaign: CampaignId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "SETTLED_S", 0.0)
    await held_by_another(db, campaign)
    backend = Backend(is_lost=True)
    backend.may_start.set()
    with pytest.raises(TrainerLost, match="raylet"):
        await wait_for_lease(db, campaign, nothing, asyncio.Event(), Standby(db, campaign, backend))
