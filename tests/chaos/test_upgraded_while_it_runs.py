"""A campaign that processes of two releases play, each replaced in turn, has the weights of one
that nothing happened to.

The releases are other processes with other code (`last_release`): the last one and today's, and
today's and a next one, which is also taken back and installed again.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import text

from cli.operations.machine.fleet import Fleet
from cli.operations.runs.local_campaign import members
from infra.db.database import NEEDED_REVISION, Database
from mainspring.artifacts.reproducibility import CampaignFingerprint
from mainspring.config.campaign import CampaignConfig
from mainspring.config.section import STORED
from mainspring.config.settings import load_settings
from mainspring.errors import DatabaseError
from migrations import upgrade
from tests.chaos import fault_schedule
from tests.chaos.last_release import (
    NEXT_REVISION,
    ROOT,
    last_release,
    mainspring,
    next_release,
    of_tree,
)
from tests.chaos.test_one_hash import Schedule, undisturbed
from tests.waiting import until

NUM_STEPS = 10
"""Enough that the campaign is still running when the last process is replaced."""
NAME = "one-hash"
IN_TURN = ("rollout", "sandbox", "engine", "trainer")
ROLES = {"rollout", "node", "trainer"}
"""Of processes that are connected to the database; the engine is not."""
TIMEOUT_S = 900.0


@dataclass(slots=True)
class Mixed:
    """A campaign whose processes are of several releases."""

    home: Path
    db: Database
    url: str
    fleet: Fleet

    async def replies(self, more: int = 4) -> None:
        """Waits until replies were asked for and stored, by the processes of now."""
        before = await self._num_calls()

        async def are_stored() -> bool:
            self.fleet.check()
            status = await self.scalar("SELECT status FROM campaigns")
            assert status == "running", f"the campaign is {status} before all was replaced"
            return await self._num_calls() >= before + more

        await until(are_stored, TIMEOUT_S)

    async def replace(self, name: str, tree: Path, revision: str) -> None:
        """Ends a process in order, and starts the one of another release in its place."""
        member = self.fleet.members[name]
        await until(lambda: member.pid is not None)
        pid = member.pid
        assert pid is not None
        member.environment.update(of_tree(tree))
        os.kill(pid, signal.SIGTERM)
        await until(lambda: member.pid not in (None, pid), TIMEOUT_S)
        if name != "engine":
            role = {"sandbox": "node"}.get(name, name)
            await until(lambda: self._is_connected(role, revision), TIMEOUT_S)
        await self.replies()

    async def upgraded(self, tree: Path, revision: str) -> None:
        """The schema of `tree`, below the processes that run; they work on it."""
        told = await asyncio.to_thread(mainspring, tree, "db", "upgrade", "--home", str(self.home))
        assert told.endswith(f"-> {revision}\n"), told
        await self.replies()

    async def has_finished(self) -> bool:
        """Raises DatabaseError."""
        self.fleet.check()
        return await self._ask("SELECT status FROM campaigns") == "finished"

    async def schemas(self) -> dict[str, str | None]:
        _, processes = await asyncio.to_thread(upgrade.look, self.url)
        return {process.role: process.schema for process in processes}

    async def _is_connected(self, role: str, revision: str) -> bool:
        self.fleet.check()
        try:
            return (await self.schemas()).get(role) == revision
        except DatabaseError:  # it was killed
            return False

    async def _num_calls(self) -> int:
        number = await self.scalar("SELECT count(*) FROM calls")
        assert isinstance(number, int)
        return number

    async def scalar(self, query: str) -> object:
        """Asks again where Postgres was killed: the caller's deadline ends that."""
        while True:
            try:
                return await self._ask(query)
            except DatabaseError:
                await asyncio.sleep(1.0)

    async def _ask(self, query: str) -> object:
        # Plain SQL: the models of today do not fit the schema of another release.
        async with self.db.statement() as connection:
            return await connection.scalar(text(query))


@asynccontextmanager
async def played_by(tree: Path, folder: Path) -> AsyncIterator[Mixed]:
    """The campaign, started by the `train` of one release, whose processes run one by one. It has
    finished when the block ends."""
    home, file = folder / "home", folder / "campaign.toml"
    file.write_text(Schedule(NUM_STEPS).text)
    await asyncio.to_thread(mainspring, tree, "up", "--home", str(home))
    try:
        settings = load_settings(home)
        async with Database.open(settings.database_url, pool_size=2) as db:
            await _train_until_replies(tree, home, file, db)
            async with db.statement() as connection:
                stored = await connection.scalar(text("SELECT config FROM campaigns"))
            config = CampaignConfig.model_validate(stored, context=STORED)
            processes = [each for each in members(settings, config) if each.name in IN_TURN]
            assert {each.name for each in processes} == set(IN_TURN)
            for process in processes:
                process.environment.update(of_tree(tree))
                process.imports = ()
            async with Fleet(processes, folder / "logs", lambda _: None) as fleet:
                mixed = Mixed(home, db, settings.database_url, fleet)
                await mixed.replies()
                yield mixed
                await until(mixed.has_finished, TIMEOUT_S)
    finally:
        await asyncio.to_thread(mainspring, ROOT, "down", "--home", str(home))


async def _train_until_replies(tree: Path, home: Path, file: Path, db: Database) -> None:
    """`train` ends with all its workers once the campaign plays."""
    with (home / "train.log").open("ab") as log:
        train = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mainspring", "train", str(file), "--home", str(home)),
            env={**os.environ, **of_tree(tree)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    async def has_replies() -> bool:
        assert train.returncode is None, "the campaign cannot be started"
        async with db.statement() as connection:
            return bool(await connection.scalar(text("SELECT count(*) FROM calls")))

    try:
        await until(has_replies, TIMEOUT_S)
    finally:
        train.kill()
        await train.wait()


def assert_same(plain: CampaignFingerprint, home: Path, name: str = NAME) -> None:
    mainspring(ROOT, "up", "--home", str(home))
    try:
        found = CampaignFingerprint.model_validate(fault_schedule.fingerprint(home, name))
    finally:
        mainspring(ROOT, "down", "--home", str(home))
    assert plain.difference(found) is None, plain.difference(found)
    assert found.weights == plain.weights


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> CampaignFingerprint:
    """Of the campaign that one release plays from its start to its end."""
    return undisturbed(tmp_path_factory.mktemp("plain"), NUM_STEPS)


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.timeout(3000)
async def test_processes_of_the_last_release_are_replaced_by_todays_one_by_one(
    plain: CampaignFingerprint, tmp_path: Path
) -> None:
    last = last_release(tmp_path / "last")
    async with played_by(last, tmp_path) as mixed:
        await mixed.upgraded(ROOT, NEEDED_REVISION)
        assert set((await mixed.schemas()).values()) == {None}, "they are of the last release"
        for name in IN_TURN:
            await mixed.replace(name, ROOT, NEEDED_REVISION)
        assert await mixed.schemas() == dict.fromkeys(ROLES, NEEDED_REVISION)
    await asyncio.to_thread(assert_same, plain, tmp_path / "home")


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.timeout(3000)
async def test_the_next_release_is_installed_taken_back_and_installed_again(
    plain: CampaignFingerprint, tmp_path: Path
) -> None:
    following = next_release(tmp_path / "next")
    async with played_by(ROOT, tmp_path) as mixed:
        await mixed.upgraded(following, NEXT_REVISION)
        for name in IN_TURN:
            await mixed.replace(name, following, NEXT_REVISION)
        assert await mixed.schemas() == dict.fromkeys(ROLES, NEXT_REVISION)
        # Today's starts on a schema that it does not know, beside processes of the next.
        await mixed.replace("rollout", ROOT, NEEDED_REVISION)
        assert (await mixed.schemas())["rollout"] == NEEDED_REVISION
        await mixed.replace("rollout", following, NEXT_REVISION)
    await asyncio.to_thread(assert_same, plain, tmp_path / "home")
