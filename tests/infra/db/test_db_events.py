"""Events: written with what they tell of, once, and bounded; whose they are, and for how long."""

import asyncio
import re
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any, cast

import pytest
from sqlalchemy import func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection
from structlog.testing import capture_logs

from infra.db.database import Database
from infra.db.nodes import engines, nodes
from infra.db.nodes.engines import LOST_AFTER_S, EngineLook
from infra.db.rollouts import rollouts
from infra.db.runs import campaigns, changes, events, removal
from infra.db.runs.events import Event, EventRecord
from infra.db.runs.late_events import LateEvents
from infra.db.tables.engine_rows import EngineRow
from infra.db.tables.event_rows import EventRow
from infra.db.tables.event_writes import MAX_CHARS, write
from infra.db.tables.models import CampaignRow, NodeRow
from infra.db.training import trainers
from mainspring.ids import NodeId
from mainspring.protocol.timeouts import NODE_LOST_AFTER_S
from mainspring.status import CampaignStatus, EventKind
from mainspring.status.event import LASTING
from tests.infra.db.store_records import CAMPAIGN, RUN, add_group, begin_campaign

URL = "http://engine:1"
UNREACHABLE = "postgresql://nobody@127.0.0.1:1/none"


async def told(db: Database, *kinds: EventKind) -> list[EventRecord]:
    return await events.newest(db, CAMPAIGN, kinds=kinds)


async def sentences(db: Database, *kinds: EventKind) -> list[str]:
    return [event.text for event in await told(db, *kinds)]


async def makes_older(db: Database, age: timedelta) -> None:
    async with db.transaction() as connection:
        await connection.execute(update(CampaignRow).values(created_at=func.now() - age))


async def test_each_status_of_a_campaign_is_one_event(db: Database) -> None:
    await begin_campaign(db)
    for status in (
        CampaignStatus.WARMING_UP,
        CampaignStatus.RUNNING,
        CampaignStatus.RUNNING,
        CampaignStatus.PAUSED,
        CampaignStatus.RUNNING,
    ):
        await campaigns.set_status(db, CAMPAIGN, status)
    await campaigns.set_status(db, CAMPAIGN, CampaignStatus.FAILED, "the disk is full")
    assert await campaigns.resume(db, CAMPAIGN) is CampaignStatus.FAILED
    assert await campaigns.resume(db, CAMPAIGN) is None
    await campaigns.finish(db, CAMPAIGN)
    await campaigns.finish(db, CAMPAIGN)
    await campaigns.set_status(db, CAMPAIGN, CampaignStatus.RUNNING)
    assert await sentences(db) == [
        "first started",
        "first has its first policy and runs",
        "first was paused",
        "first was resumed",
        "first failed: the disk is full",
        "first was started again",
        "first finished",
    ]


async def test_a_transaction_that_is_rolled_back_leaves_no_event(db: Database) -> None:
    await begin_campaign(db)
    with pytest.raises(RuntimeError, match="killed here"):
        async with db.transaction() as connection:
            await write(connection, Event(EventKind.COMMAND, "x", "never happened", CAMPAIGN))
            raise RuntimeError("killed here")
    assert await told(db) == []


async def test_two_commands_at_once_leave_two_events(db: Database) -> None:
    await begin_campaign(db)
    lengths = [[(("trainer", "num_steps"), number)] for number in (40, 50)]
    await asyncio.gather(*(changes.add(db, CAMPAIGN, each, "ann@a") for each in lengths))
    found = await told(db, EventKind.COMMAND)
    assert [event.by for event in found] == ["ann@a", "ann@a"]
    assert all(event.text.startswith("campaign set: trainer.num_steps") for event in found)
    # The same value again changes nothing, and is no event.
    latest = (await campaigns.get(db, CAMPAIGN)).num_steps
    await changes.add(db, CAMPAIGN, [(("trainer", "num_steps"), latest)], "ann@a")
    assert len(await told(db, EventKind.COMMAND)) == 2


async def test_a_lease_that_is_taken_over_is_told_once(db: Database) -> None:
    await begin_campaign(db)
    await trainers.take(db, CAMPAIGN, owner="a pid 1", process="a/1")
    assert await told(db) == []

    async def takes(name: str) -> bool:
        lease = await trainers.take(
            db, CAMPAIGN, owner=f"{name} pid 2", process=f"{name}/2", ended="a/1"
        )
        return lease is not None

    taken = await asyncio.gather(*map(takes, "bcdef"))
    assert sum(taken) == 1
    [event] = await told(db, EventKind.TRAINER_REPLACED)
    assert event.subject == "a pid 1" and event.by == f"{'bcdef'[taken.index(True)]} pid 2"
    assert re.search(r"took over from a pid 1, which was silent for \d+ s", event.text), event.text
    # One that ended in order is followed without an event.
    await trainers.release(db, CAMPAIGN, 2)
    assert await trainers.take(db, CAMPAIGN, owner="z", process="z/1") is not None
    assert len(await told(db)) == 1


async def test_an_epoch_is_told_by_who_begins_it(db: Database) -> None:
    await begin_campaign(db)
    _, [rollout, other] = await add_group(db)
    for _ in range(2):
        await rollouts.claim(db, rollout, RUN)
    assert await told(db) == []
    for _ in range(2):
        await rollouts.claim(db, rollout, "run-b")
    await rollouts.claim(db, other, RUN)
    for _ in range(2):
        await rollouts.new_epoch(db, other, 0, RUN)
    found = await told(db, EventKind.EPOCH_BEGUN)
    assert [(event.subject, event.count) for event in found] == [(rollout, 1), (other, 1)]
    assert "could not be rebuilt" in found[1].text


async def test_an_engine_is_lost_once_and_back_once(db: Database) -> None:
    await begin_campaign(db)
    await makes_older(db, timedelta(minutes=1))
    await engines.claim(db, CAMPAIGN, [URL])

    async def saw(fault: str = "") -> None:
        look = EngineLook(version="3-abc", fault=fault)
        await engines.saw(db, CAMPAIGN, URL, URL, look)

    async def passes(seconds: float) -> None:
        before = func.now() - timedelta(seconds=seconds)
        async with db.transaction() as connection:
            await connection.execute(update(EngineRow).values(seen_at=before))
            earlier = EventRow.last_at - timedelta(seconds=seconds)
            await connection.execute(update(EventRow).values(last_at=earlier))

    await saw("not started yet")
    assert await told(db) == []
    await saw()
    await saw()
    await saw("refused")  # for a moment: it is not lost
    await saw()
    assert await sentences(db) == [f"engine {URL} answers"]
    for _ in range(2):
        await saw()
        await passes(LOST_AFTER_S + 1)
        await asyncio.gather(saw("refused"), saw("refused"))
        await saw("refused again")
        await saw()
        await saw()
    found = await told(db, EventKind.ENGINE_LOST, EventKind.ENGINE_BACK)
    # Within a minute the same is counted.
    assert [(event.kind, event.count) for event in found] == [
        ("engine_lost", 2),
        ("engine_back", 2),
    ]
    assert found[0].text == f"engine {URL} is lost: refused"


async def test_engines_and_nodes_of_people_carry_their_names(db: Database) -> None:
    await begin_campaign(db)
    life = await engines.register(db, CAMPAIGN, "own", URL, EngineLook(), "host pid 7")
    await engines.add(db, CAMPAIGN, [], "more", "http://engine:2", "ann@a")
    await engines.set_draining(db, CAMPAIGN, [], "more", True, "ben@b")
    for _ in range(2):
        await engines.remove(db, CAMPAIGN, "more", "ann@a")
        await engines.leave(db, CAMPAIGN, "own", life)
    found = [(event.by, event.text) for event in await told(db)]
    assert found[:4] == [
        ("host pid 7", f"engine own joined, at {URL}"),
        ("ann@a", "engine more added, at http://engine:2"),
        ("ben@b", "engine more drained"),
        ("ann@a", "engine more removed"),
    ]
    assert len(found) == 5 and found[4][1] == "engine own ended in order"


async def test_a_node_is_lost_once_for_all_who_tell(db: Database) -> None:
    await begin_campaign(db)
    await nodes.beat(
        db, nodes.NodeBeat(NodeId("b"), 4, 0, None, [], [], 1, 1, "1", running_s=1.0, clock=None)
    )
    assert await nodes.silent(db) == {}
    gone = func.now() - timedelta(seconds=NODE_LOST_AFTER_S + 5)
    async with db.transaction() as connection:
        await connection.execute(update(NodeRow).values(seen_at=gone))
    silent = await nodes.silent(db)
    [(node, seen_at)] = silent.items()
    await asyncio.gather(*(nodes.tell_lost(db, node, seen_at) for _ in range(5)))
    # Of no campaign, and shown with those that run meanwhile.
    [event] = await told(db, EventKind.NODE_LOST)
    assert (event.campaign, event.count, event.subject) == (None, 1, "b")


async def test_a_flood_is_counted_in_one_row(db: Database) -> None:
    await begin_campaign(db)
    await makes_older(db, timedelta(minutes=9))
    for number in range(50):
        event = Event(EventKind.JUDGE_FAILED, "style", f"judge style: try {number}", CAMPAIGN)
        await events.tell(db, event)
    [found] = await told(db)
    assert (found.count, found.text) == (50, "judge style: try 49")
    assert found.last_at > found.at
    # Later it is another one, and so is another campaign's.
    old = func.now() - timedelta(minutes=5)
    async with db.transaction() as connection:
        await connection.execute(update(EventRow).values(last_at=old))
    await events.tell(db, Event(EventKind.JUDGE_FAILED, "style", "again", CAMPAIGN))
    await events.tell(db, Event(EventKind.JUDGE_FAILED, "style", "of no campaign"))
    assert [event.count for event in await told(db)] == [50, 1, 1]


async def test_tellers_at_once_lose_nothing_and_wait_for_nothing(db: Database) -> None:
    await begin_campaign(db)
    event = Event(EventKind.JUDGE_FAILED, "style", "no vote", CAMPAIGN)
    await events.tell(db, event)
    async with db.transaction() as connection:
        await write(connection, event)  # holds the row that others would count in
        async with asyncio.timeout(20):
            await asyncio.gather(*(events.tell(db, event) for _ in range(20)))
    assert sum(each.count for each in await told(db)) == 22


async def test_the_chatty_ones_are_pruned_and_commands_stay(db: Database) -> None:
    await begin_campaign(db)
    await events.tell(db, Event(EventKind.COMMAND, CAMPAIGN, "campaign pause", CAMPAIGN, "ann@a"))
    for number in range(12):
        subject = f"r{number}"
        await events.tell(db, Event(EventKind.EPOCH_BEGUN, subject, subject, CAMPAIGN))
        await events.tell(db, Event(EventKind.NODE_BEGAN, subject, subject))
    assert EventKind.COMMAND in LASTING
    assert await events.prune(db, most=10) == 4
    assert await events.prune(db, most=10) == 0
    left = await sentences(db, EventKind.EPOCH_BEGUN)
    assert left == [f"r{number}" for number in range(2, 12)]
    assert await sentences(db, EventKind.COMMAND) == ["campaign pause"]


async def test_text_of_others_is_stored_plain_and_short(db: Database) -> None:
    await begin_campaign(db)
    hostile = "NUL \0 and \ud800\nlines " + "x" * 10_000
    event = Event(
        EventKind.PROCESS_RESTARTED, hostile, hostile, CAMPAIGN, hostile, {"words": hostile}
    )
    await events.tell(db, event)
    [found] = await told(db)
    assert len(found.text) == MAX_CHARS and "\n" not in found.text
    assert "\0" not in found.text + found.subject + found.by + found.data["words"]


async def test_events_go_with_their_campaign_and_are_not_a_later_ones(db: Database) -> None:
    await begin_campaign(db)
    await campaigns.set_status(db, CAMPAIGN, CampaignStatus.CANCELLED)
    await removal.remove(db, CAMPAIGN, await removal.mark(db, CAMPAIGN))
    async with db.transaction() as connection:
        assert await connection.scalar(select(func.count()).select_from(EventRow)) == 0
    # What notices something at that moment may be later than the removal.
    late = Event(EventKind.ENGINE_LOST, URL, "late", CAMPAIGN)
    await events.tell(db, late)
    await begin_campaign(db)
    assert await told(db) == []
    async with db.transaction() as connection:
        await connection.execute(text("DELETE FROM policy_versions"))
        await connection.execute(text("DELETE FROM campaigns"))
    assert await events.prune(db) == 1


async def test_those_of_machines_belong_to_the_campaigns_of_their_time(db: Database) -> None:
    await events.tell(db, Event(EventKind.NODE_BEGAN, "a", "before it"))
    await begin_campaign(db)
    await events.tell(db, Event(EventKind.NODE_BEGAN, "a", "meanwhile"))
    await campaigns.set_status(db, CAMPAIGN, CampaignStatus.FAILED, "x")
    await events.tell(db, Event(EventKind.NODE_BEGAN, "a", "after it"))
    await events.tell(db, Event(EventKind.COMMAND, CAMPAIGN, "campaign archive", by="ann@a"))
    assert await sentences(db) == ["meanwhile", "first failed: x", "campaign archive"]
    assert len(await events.newest(db)) == 5
    assert len(await events.newest(db, limit=2)) == 2
    assert await events.newest(db, since=timedelta(seconds=-5)) == []


class Unsteady:
    """Another server's address until `answers`."""

    def __init__(self, db: Database) -> None:
        self._db, self._away = db, Database.open(UNREACHABLE)
        self.answers = False
        self.num_tried = 0

    def statement(self) -> AbstractAsyncContextManager[AsyncConnection]:
        self.num_tried += 1
        return (self._db if self.answers else self._away).statement()


async def test_late_events_are_written_once_when_the_store_answers(db: Database) -> None:
    await begin_campaign(db)
    unsteady = Unsteady(db)
    async with LateEvents(cast(Any, unsteady)) as late:
        late.tell(Event(EventKind.SERVICE_REVIVED, "postgres", "postgres ended", CAMPAIGN))
        await asyncio.sleep(1.2)
        unsteady.answers = True
    await check_written_late(db, unsteady)


@pytest.mark.parametrize("kind", [EventKind.STEP_REPEATED, EventKind.ENGINE_RELOADED])
async def test_an_event_is_told_when_the_store_answers_again(db: Database, kind: EventKind) -> None:
    await begin_campaign(db)
    unsteady = Unsteady(db)
    telling = asyncio.create_task(events.tell(cast(Any, unsteady), Event(kind, "a", "b", CAMPAIGN)))
    await asyncio.sleep(1.2)
    unsteady.answers = True
    await telling
    await check_written_late(db, unsteady)


async def check_written_late(db: Database, unsteady: Unsteady) -> None:
    assert unsteady.num_tried > 1
    [found] = await told(db)
    assert found.count == 1
    async with db.transaction() as connection:
        age_s = await connection.scalar(select(func.extract("epoch", func.now() - EventRow.at)))
    assert age_s is not None and float(age_s) > 1.0


async def test_the_same_id_is_one_event(db: Database) -> None:
    await begin_campaign(db)
    event = Event(EventKind.SANDBOX_REBUILT, "r", "rebuilt", CAMPAIGN, key="rebuilt/s1")
    await asyncio.gather(*(events.tell(db, event) for _ in range(8)))
    assert [(each.id, each.count) for each in await told(db)] == [("rebuilt/s1", 1)]


async def test_a_store_that_does_not_answer_fails_no_work() -> None:
    async with Database.open(UNREACHABLE) as away:
        with capture_logs() as logs:
            began = Event(EventKind.NODE_BEGAN, "a", "a began")
            await events.tell(away, began, patience_s=0.6)
    assert [(each["event"], each["told"]) for each in logs] == [
        ("an event was not stored", "a began")
    ]
