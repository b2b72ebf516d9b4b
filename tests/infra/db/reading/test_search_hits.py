"""A search finds what agents did, in whatever part it stands, and counts it within a bound."""

import asyncio
import sys
import zlib

import pytest
from sqlalchemy import func, insert, select, text
from store_records import CAMPAIGN, RUN, add_group, begin_campaign, call, finish

from infra.db.database import Database
from infra.db.programs import model_requests, program_lives
from infra.db.reading import search_hits
from infra.db.reading.search_hits import SearchFound
from infra.db.rollouts import rollouts, search_pieces, turns
from infra.db.runs import campaign_rows, campaigns, removal
from infra.db.tables.program_rows import ModelRequestRow
from infra.db.tables.search_rows import SearchPieceRow
from mainspring.errors import UsageError
from mainspring.ids import RolloutId
from mainspring.programs.matching import key_of
from mainspring.programs.record import BranchKind
from mainspring.programs.request import ChatMessage, Dialect, ModelRequest, Role
from mainspring.status import CampaignStatus, Verdict
from mainspring.trajectories.search_query import parse
from tests.view.viewed import Told, play
from tests.waiting import until

TOLD = Told(
    reply="I look at src/app/models.py first.",
    command="python -m pytest tests/test_app.py::test_zeta",
    output=b"E   ModuleNotFoundError: No module named 'attrs'\n"
    + b"x " * 30_000
    + b"\nomega end\n",
    patch=b"diff --git a/a.py b/a.py\n-alpha\n+kappa\n",
    tests="FAILED with theta",
    test="tests/test_b.py::test_hidden",
)


async def fill(db: Database) -> list[RolloutId]:
    filled = []
    while (rollout := await search_pieces.fill_next(db)) is not None:
        filled.append(rollout)
    return filled


async def find(db: Database, query: str, **options: int | str) -> SearchFound:
    return await search_hits.search(db, parse(query), **options)  # pyright: ignore


async def places(db: Database, query: str) -> list[tuple[str, int | None]]:
    return [(hit.part.value, hit.call) for hit in (await find(db, query)).hits]


async def test_each_part_is_found_with_its_excerpt(db: Database) -> None:
    await begin_campaign(db)
    _, [rollout] = await add_group(db, size=1)
    await play(db, rollout, TOLD, num_turns=2)
    assert await places(db, "omega") == []
    assert await fill(db) == [rollout]
    assert await places(db, "models.py") == [("thought", 0), ("thought", 1)]
    assert await places(db, '"app models"') == await places(db, "src/app/models.py")
    assert await places(db, "test_zeta") == [("command", 0), ("command", 1)]
    assert await places(db, "MODULENOTFOUNDERROR -pip exit:1") == [("output", 1)]
    assert await places(db, "modulenot* omega exit:>=0 exit:!=1") == [("output", 0)]
    assert await places(db, "kappa") == [("patch", None)]
    assert await places(db, "theta test_hidden") == [("tests", None)]
    assert await places(db, "omega -modulenotfounderror") == []
    assert await places(db, '"module no"') == []
    found = await find(db, '"no module named"')
    hit = found.hits[0]
    assert (hit.before, hit.found) == ("E ModuleNotFoundError: ", "No module named")
    assert hit.after.startswith(" 'attrs' x x") and hit.turn == 1
    assert found.counts() == "2 places in 1 rollout of 1 task"


async def test_conditions_hold_for_the_rollout(db: Database) -> None:
    await begin_campaign(db)
    _, ids = await add_group(db, size=3)
    for rollout, verdict in zip(ids, [Verdict.RESOLVED, Verdict.NOT_RESOLVED, None], strict=True):
        await play(db, rollout, TOLD, verdict=verdict)
    await fill(db)

    async def matching(query: str) -> list[str]:
        return sorted({hit.rollout for hit in (await find(db, f"omega {query}")).hits})

    assert await matching("verdict:not_resolved") == [ids[1]]
    assert await matching("-verdict:not_resolved") == [ids[0], ids[2]]
    assert await matching("stop:submitted version:<1 task:rain-0 campaign:first") == ids
    assert await matching("version:>=1") == await matching("campaign:other") == []
    assert await matching("-task:train") == await matching("step:1") == []
    assert len((await find(db, "part:patch")).hits) == 3


async def test_pages_follow_each_other_and_counts_have_a_bound(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begin_campaign(db)
    _, ids = await add_group(db, size=3)
    for rollout in ids:
        await play(db, rollout, TOLD, num_turns=4)
    await fill(db)
    assert (await find(db, "omega")).counts() == "12 places in 3 rollouts of 1 task"
    for looked in (search_hits.LOOKED, 5, 0):
        monkeypatch.setattr(search_hits, "LOOKED", looked)
        monkeypatch.setattr(search_hits, "WINDOW", 7)
        seen: list[tuple[str, int | None]] = []
        after: str | None = ""
        while after is not None:
            found = await find(db, "omega", after=after, size=3)
            if not after:
                assert found.counts().startswith("more than 7 places in at least 2 rollouts")
            seen += [(hit.rollout, hit.call) for hit in found.hits]
            after = found.after
        assert seen == [(rollout, number) for rollout in reversed(ids) for number in range(4)]
    with pytest.raises(UsageError, match="no place of a search"):
        await find(db, "omega", after="1")


async def test_a_replaced_epoch_is_found_no_more(db: Database) -> None:
    await begin_campaign(db)
    _, [rollout] = await add_group(db, size=1)
    await play(db, rollout, TOLD)
    await fill(db)
    claim = await rollouts.claim(db, rollout, "run-b")
    assert await places(db, "omega") == [] and await fill(db) == []
    await turns.put_call(db, rollout, claim.epoch, call(0, 0))
    await finish(db, rollout, claim.epoch, 1.0)
    assert await fill(db) == [rollout] and await fill(db) == []
    assert await places(db, "omega") == []
    assert {each for _, each in await places(db, "part:thought")} == {0}


async def test_two_at_once_share_the_work_and_a_reindex_stores_the_same(
    db: Database, store_url: str
) -> None:
    await begin_campaign(db)
    _, ids = await add_group(db, size=6)
    for rollout in ids:
        await play(db, rollout, TOLD)
    async with Database.open(store_url) as other:
        filled = await asyncio.gather(fill(db), fill(other))
    assert sorted([*filled[0], *filled[1]]) == ids
    stored = await num_pieces(db)
    assert stored == 6 * 5
    await search_pieces.forget(db)
    assert await search_pieces.num_unsearched(db) == 6
    assert len((await find(db, "omega")).hits) == 6
    await fill(db)
    assert await num_pieces(db) == stored and await search_pieces.num_unsearched(db) == 0


async def test_one_that_is_killed_in_the_middle_leaves_the_rollout_to_others(
    db: Database, store_url: str
) -> None:
    await begin_campaign(db)
    _, [rollout] = await add_group(db, size=1)
    await play(db, rollout, TOLD)
    program = (
        "import asyncio, sys\n"
        "from infra.db.database import Database\n"
        "from infra.db.rollouts import search_pieces\n"
        "asyncio.run(search_pieces.fill_next(Database.open(sys.argv[1])))\n"
    )
    async with db.transaction() as connection:
        # It has the rollout, and waits here before it writes.
        await connection.execute(text("LOCK TABLE search_pieces IN SHARE MODE"))
        command = (sys.executable, "-c", program, store_url)
        process = await asyncio.create_subprocess_exec(*command)
        try:

            async def waits() -> bool:
                blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = "
                asked = text(blocked + "'search_pieces'::regclass")
                return bool(await connection.scalar(asked))

            await until(waits)
            assert await search_pieces.fill_next(db) is None
        finally:
            process.kill()
            await process.wait()
    assert await num_pieces(db) == 0

    async def is_filled() -> bool:
        return await search_pieces.fill_next(db) == rollout

    await until(is_filled)
    assert len((await find(db, "omega")).hits) == 1


async def test_a_deleted_campaign_takes_its_words_with_it(db: Database) -> None:
    await begin_campaign(db)
    _, ids = await add_group(db, size=2)
    for rollout in ids:
        await play(db, rollout, TOLD)
    await search_pieces.fill_next(db)
    await campaigns.set_status(db, CAMPAIGN, CampaignStatus.FINISHED)
    uid = await removal.mark(db, CAMPAIGN)
    assert await fill(db) == []
    await removal.remove(db, CAMPAIGN, uid)
    assert await num_pieces(db) == 0 and await places(db, "omega") == []


async def test_a_removal_waits_for_a_rollout_that_is_being_made_searchable(db: Database) -> None:
    await begin_campaign(db)
    _, [rollout] = await add_group(db, size=1)
    await play(db, rollout, TOLD)
    await campaigns.set_status(db, CAMPAIGN, CampaignStatus.FINISHED)

    async def delete() -> None:
        await removal.remove(db, CAMPAIGN, await removal.mark(db, CAMPAIGN))

    await asyncio.gather(search_pieces.fill_next(db), delete())
    assert await num_pieces(db) == 0


async def test_a_program_is_found_by_what_its_requests_add(db: Database) -> None:
    await begin_campaign(db)
    _, [rollout] = await add_group(db, size=1)
    claim = await rollouts.claim(db, rollout, RUN)
    await program_lives.begin(db, rollout, claim.epoch, 0)
    said: list[ChatMessage] = [ChatMessage(role=Role.SYSTEM, text="sigma")]
    for number, told in enumerate(["lambda", "upsilon"]):
        said.append(ChatMessage(role=Role.USER, text=told))
        request = ModelRequest(dialect=Dialect.CHAT, messages=tuple(said))
        await model_requests.ask(
            db,
            rollout,
            claim.epoch,
            0,
            key=key_of(request),
            setting="",
            request=request,
            kind=BranchKind.MAIN,
            is_retry=False,
        )
        reply = call(number, 100 * number)
        await model_requests.put_reply(db, rollout, claim.epoch, reply, f"h{number}")
        said.append(ChatMessage(role=Role.ASSISTANT, text="rho"))
    await finish(db, rollout, claim.epoch, 1.0)
    await fill(db)
    assert await places(db, "lambda") == [("output", 0)]
    assert await places(db, "upsilon") == [("output", 1)]
    assert await places(db, "sigma") == []


async def test_a_record_that_cannot_be_read_stops_no_other(db: Database) -> None:
    await begin_campaign(db)
    _, ids = await add_group(db, size=2)
    for rollout in ids:
        await play(db, rollout, TOLD)
    async with db.transaction() as connection:
        await connection.execute(
            insert(ModelRequestRow).values(
                rollout_id=ids[1],
                epoch=0,
                number=0,
                key="k",
                occurrence=0,
                life=0,
                first_life=0,
                dialect=Dialect.CHAT,
                body=zlib.compress(b"no request"),
                state="stored",
                kind=BranchKind.MAIN,
                setting="",
            )
        )
    assert sorted(await fill(db)) == ids
    assert {hit.rollout for hit in (await find(db, "omega")).hits} == {ids[0]}


def test_an_archive_has_neither_words_nor_a_mark_of_them() -> None:
    tables = {table.name: table.columns for table in campaign_rows.tables()}
    assert "search_pieces" not in tables and "searched_epoch" not in tables["rollouts"]


async def num_pieces(db: Database) -> int:
    async with db.statement() as connection:
        return await connection.scalar(select(func.count()).select_from(SearchPieceRow)) or 0
