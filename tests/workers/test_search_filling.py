"""A rollout worker makes ended rollouts searchable, also after the database was away."""

import asyncio
import os
import sys

from structlog.testing import capture_logs

from cli.operations.machine.embedded_stack import StackInfo
from infra.db.database import Database
from infra.db.reading import search_hits
from infra.db.rollouts import search_pieces
from mainspring.trajectories.search_query import parse
from tests.infra.db.store_records import add_group, begin_campaign
from tests.view.viewed import Told, play
from tests.waiting import until
from workers.search_filling import SearchFilling


async def test_what_ends_later_is_found_later(db: Database) -> None:
    await begin_campaign(db)
    _, ids = await add_group(db, size=2)
    filling = asyncio.create_task(SearchFilling(db, look_every_s=0.05).run_forever())

    async def all_are_searched() -> bool:
        return await search_pieces.num_unsearched(db) == 0

    try:
        for rollout in ids:
            await play(db, rollout, Told())
            await until(all_are_searched)
    finally:
        filling.cancel()


async def test_a_rollout_worker_makes_rollouts_searchable(stack: StackInfo) -> None:
    async with Database.open(stack.database_url) as db:
        name = await begin_campaign(db, "searched-by-a-worker")
        _, [rollout] = await add_group(db, size=1, campaign=name)
        await play(db, rollout, Told(output=b"omegaword"))
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mainspring", "worker", "rollout", "--home", str(stack.home)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=os.environ,
        )

        async def is_found() -> bool:
            found = await search_hits.search(db, parse("omegaword campaign:searched-by-a-worker"))
            return [hit.rollout for hit in found.hits] == [rollout]

        try:
            await until(is_found)
        finally:
            worker.terminate()
            await worker.wait()


async def test_without_its_database_it_tries_again() -> None:
    async with Database.open("postgresql://nobody@127.0.0.1:1/none") as away:
        with capture_logs() as logs:
            filling = asyncio.create_task(SearchFilling(away, look_every_s=0.01).run_forever())

            async def has_told_twice() -> bool:
                return len(logs) > 1

            try:
                await until(has_told_twice)
            finally:
                filling.cancel()
    assert {each["event"] for each in logs} == {"words of ended rollouts are not stored yet"}
