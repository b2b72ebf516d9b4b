"""Requests and lives of programs in the store: one row, one number, one reply."""

import asyncio
import dataclasses

import pytest
from store_records import add_claimed_rollout

from infra.db.database import Database
from infra.db.fence import Fenced
from infra.db.programs import answer_receipts, model_requests, program_lives
from infra.db.reading import bundles
from infra.db.rollouts import rollouts
from mainspring.ids import RolloutId
from mainspring.programs.matching import key_of
from mainspring.programs.record import BranchKind, RequestState
from mainspring.programs.request import ChatMessage, Dialect, ModelRequest, Role
from mainspring.trajectories.turns import Call, VersionSpan


def request(text: str) -> ModelRequest:
    message = ChatMessage(role=Role.USER, text=text)
    return ModelRequest(dialect=Dialect.CHAT, model="m", messages=(message,))


def reply(number: int) -> Call:
    span = VersionSpan(0, 0, 2)
    return Call(number, None, 0, (1, 2), (3, 4), (-0.5, -0.5), (span,), "hello", "stop")


async def ask(
    db: Database,
    rollout: RolloutId,
    text: str,
    *,
    life: int = 0,
    is_retry: bool = False,
    kind: BranchKind = BranchKind.MAIN,
    setting: str = "",
) -> model_requests.RequestStanding:
    asked = request(text)
    return await model_requests.ask(
        db, rollout, 0, life, asked, key_of(asked), kind=kind, setting=setting, is_retry=is_retry
    )


async def test_two_gateways_that_ask_the_same_at_once_write_one_row(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    found = await asyncio.gather(*(ask(db, rollout, "a") for _ in range(8)))
    assert {each.number for each in found} == {0}
    others = await asyncio.gather(*(ask(db, rollout, f"b{n}") for n in range(8)))
    assert {each.number for each in others} == set(range(1, 9))


async def test_the_same_again_is_new_only_after_its_answer_got_through(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    assert (await ask(db, rollout, "a")).number == 0
    assert (await ask(db, rollout, "a")).number == 0  # in flight
    await model_requests.put_reply(db, rollout, 0, reply(0), "h")
    again = await ask(db, rollout, "a")
    assert (again.number, again.state) == (0, RequestState.STORED)  # was not delivered
    await answer_receipts.delivered(db, rollout, 0, 0, 0)
    assert (await ask(db, rollout, "a", is_retry=True)).number == 0
    assert (await ask(db, rollout, "a")).number == 1
    # Another life finds both, in their order.
    assert (await ask(db, rollout, "a", life=1)).number == 0
    await answer_receipts.delivered(db, rollout, 0, 0, 1)
    assert (await ask(db, rollout, "a", life=1)).number == 1
    known = await model_requests.history(db, rollout, 0)
    assert [(each.life, each.first_life) for each in known] == [(1, 0), (1, 0)]


async def test_an_answer_under_a_key_that_was_replaced_is_not_noted(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    old, new = [await program_lives.begin(db, rollout, 0, 0) for _ in range(2)]
    assert (await ask(db, rollout, "a")).number == 0
    await model_requests.put_reply(db, rollout, 0, reply(0), "h")
    await answer_receipts.delivered(db, rollout, 0, 0, 0, program_lives.digest(old))
    assert (await ask(db, rollout, "a")).number == 0
    await answer_receipts.delivered(db, rollout, 0, 0, 0, program_lives.digest(new))
    assert (await ask(db, rollout, "a")).number == 1


async def test_a_retry_of_a_repeated_request_gets_the_answer_that_did_not_get_through(
    db: Database,
) -> None:
    rollout = await add_claimed_rollout(db)
    await ask(db, rollout, "a")
    await model_requests.put_reply(db, rollout, 0, reply(0), "h")
    await answer_receipts.delivered(db, rollout, 0, 0, 0)
    assert (await ask(db, rollout, "a")).number == 1
    await model_requests.put_reply(db, rollout, 0, reply(1), "h")
    assert (await ask(db, rollout, "a", is_retry=True)).number == 1


async def test_an_answer_that_a_dead_node_may_have_kept_is_told_again(db: Database) -> None:
    """The gateway saw the node take it. What the program continued, it had."""
    rollout = await add_claimed_rollout(db)
    await program_lives.begin(db, rollout, 0, 0)
    for number, text in enumerate(("a", "a", "b", "c")):
        assert (await ask(db, rollout, text)).number == number
        parent = 2 if text == "c" else None
        told = dataclasses.replace(reply(number), parent=parent)
        await model_requests.put_reply(db, rollout, 0, told, f"h{number}")
        await answer_receipts.delivered(db, rollout, 0, number, 0)
    await program_lives.begin(db, rollout, 0, 0)  # the next process of the node
    assert (await ask(db, rollout, "c")).number == 3
    assert (await ask(db, rollout, "c", is_retry=True)).number == 3
    assert (await ask(db, rollout, "a")).number == 1
    await answer_receipts.delivered(db, rollout, 0, 1, 0)
    assert (await ask(db, rollout, "a")).number == 4  # on purpose
    assert (await ask(db, rollout, "b")).number == 5  # had, since "c" continues it


async def test_another_setting_than_the_first_is_a_sub_agents(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    await ask(db, rollout, "title", kind=BranchKind.SIDE, setting="none")
    await ask(db, rollout, "a", setting="own")
    await ask(db, rollout, "b", setting="other")
    await ask(db, rollout, "c", setting="own")
    await ask(db, rollout, "d", kind=BranchKind.AGENT, setting="own")
    kinds = [each.kind.value for each in await model_requests.history(db, rollout, 0)]
    assert kinds == ["side", "main", "agent", "main", "agent"]


async def test_the_first_reply_stands_and_is_told(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    await ask(db, rollout, "a")
    first = await model_requests.put_reply(db, rollout, 0, reply(0), "h")
    other = Call(0, None, 0, (9,), (9,), (-1.0,), (VersionSpan(0, 0, 1),), "other", "stop")
    stands = await model_requests.put_reply(db, rollout, 0, other, "x")
    assert stands == first
    [known] = await model_requests.history(db, rollout, 0)
    assert (known.kind, known.history) == (BranchKind.MAIN, "h")
    await model_requests.refuse(db, rollout, 0, 0, {"why": "late"})
    looked = await model_requests.look(db, rollout, 0, 0)
    assert looked is not None and looked.state is RequestState.STORED
    assert looked.call == first
    found = await model_requests.read(db, rollout, 0, 0)
    assert found == (RequestState.STORED, request("a"), first)


async def test_a_key_opens_the_newest_life_of_a_rollout_that_runs(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    first = await program_lives.begin(db, rollout, 0, 0)
    found = await program_lives.holder(db, first)
    assert found is not None and (found.rollout, found.life) == (rollout, 0)
    renewed = await program_lives.begin(db, rollout, 0, 0)
    assert await program_lives.holder(db, first) is None
    later = await program_lives.begin(db, rollout, 0, 1)
    assert await program_lives.holder(db, renewed) is None
    await program_lives.end(db, rollout, 0, 1, 3, "the end\0")
    await program_lives.end(db, rollout, 0, 1, 4, "too late")
    await program_lives.ran_from(db, rollout, 0, 1, "one")
    await program_lives.ran_from(db, rollout, 0, 1, "another")
    lives = await program_lives.of_rollout(db, rollout, 0)
    assert [(life.returncode, life.output, life.bundle_sha256) for life in lives] == [
        (None, None, None),
        (3, "the end\ufffd", "one"),
    ]
    async with db.snapshot() as connection:
        campaign = (await rollouts.get(db, rollout)).campaign
        assert await bundles.read(connection, campaign) == {"one": 1}
    assert await program_lives.holder(db, later) is not None
    record = await rollouts.get(db, rollout)
    await rollouts.new_epoch(db, rollout, 0, record.run_id or "")
    assert await program_lives.holder(db, later) is None
    with pytest.raises(Fenced):
        await program_lives.begin(db, rollout, 0, 2)
    with pytest.raises(Fenced):
        await ask(db, rollout, "b")
