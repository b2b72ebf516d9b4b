"""One campaign to which happens what may happen to one that lives: an engine joins, another one is
killed and comes back under another address, its length and its learning rate change, a rollout
worker and a node are replaced by those of the release before and back, and a process is killed
every 30 s. It has the weights of a campaign with the same changes to which nothing happened.

Its size is the quickstart's. `test_upgraded_while_it_runs` has the releases alone, `test_changed`
the changes.
"""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cli.operations.machine.fleet import ONE_THREAD, Fleet, Member, keep_until
from cli.operations.runs.local_campaign import members
from cli.operations.runs.quickstart import TEMPLATE
from infra.db.connect import open_database
from infra.db.database import NEEDED_REVISION
from infra.db.runs import campaigns
from infra.stack import ports
from mainspring.artifacts import layout
from mainspring.artifacts.reproducibility import CampaignFingerprint
from mainspring.config.any_run import training
from mainspring.config.settings import load_settings
from mainspring.ids import CampaignId
from tests.chaos import fault_schedule
from tests.chaos.fault_roles import Role
from tests.chaos.last_release import ROOT, last_release, mainspring, of_tree
from tests.chaos.test_upgraded_while_it_runs import Mixed, assert_same
from tests.waiting import until

BEFORE = "2f1322632dc79f7c88a4921208f6c32731e6ee3d"
"""A release that works on today's schema: without task sets and cross tests."""
SCHEMA_BEFORE = "0039"
NAME = CampaignId("all-at-once")
FIELDS = (
    f"name={NAME}",
    "schedule=reproducible",
    "trainer.num_steps=6",
    "evaluation.every_steps=10",
    "tasks.num_heldout=16",
    "evaluation.greedy_tasks=16",
)
CHANGES = (("trainer.optimizer.lr=0.0005", "4"), ("trainer.num_steps=10", "5"))
PAUSE_S = 30.0
TIMEOUT_S = 3600.0
ROLES = (
    *(Role.ROLLOUT, Role.NODE, Role.TRAINER, Role.STANDBY, Role.RANK, Role.RAYLET),
    *(Role.ENGINE, Role.SANDBOX, Role.POSTGRES, Role.TEMPORAL),
)


def start(home: Path, engines: str) -> None:
    """Stores the quickstart's campaign with some fields set, and changes it."""
    sets = [word for each in (*FIELDS, f"policy.engines={engines}") for word in ("--set", each)]
    in_home = ("--home", str(home))
    mainspring(ROOT, "campaign", "start", str(TEMPLATE), *sets, "--force", "--yes", *in_home)
    for change, step in CHANGES:
        asked = ("campaign", "set", NAME, change, "--from-step", step, "--yes")
        mainspring(ROOT, *asked, *in_home)


def undisturbed(home: Path) -> CampaignFingerprint:
    mainspring(ROOT, "up", "--home", str(home))
    try:
        start(home, f'["http://127.0.0.1:{ports.pick()}"]')
        mainspring(ROOT, "train", "--name", NAME, "--home", str(home))
        return CampaignFingerprint.model_validate(fault_schedule.fingerprint(home, NAME))
    finally:
        mainspring(ROOT, "down", "--home", str(home))


def joining(name: str, home: Path, waits_for: Path) -> Member:
    """An engine that joins the campaign, at each start under another free port."""
    model = layout.policy(home, NAME, 0) / layout.HF_DIRECTORY
    arguments = ["serve", "--model", str(model), "--campaign", NAME, "--name", name]
    arguments += ["--port", "0", "--reproducible", "--step-interval-ms", "50"]
    arguments += ["--no-restart", "--home", str(home)]
    return Member(name, arguments, waits_for=waits_for, environment=dict(ONE_THREAD))


@dataclass(slots=True)
class AllAtOnce(Mixed):
    """The campaign, whose processes are killed at random."""

    killed: list[Role] = field(default_factory=list)

    async def kill_at_random(self, rng: random.Random) -> None:
        while True:
            await asyncio.sleep(PAUSE_S)
            while True:
                role = rng.choice(ROLES)
                if await asyncio.to_thread(fault_schedule.kill, role, self.home, None, rng):
                    break
            self.killed.append(role)

    async def replies_of(self, engine: str) -> None:
        """Waits for one more reply of this engine."""
        replies = f"SELECT count(*) FROM calls WHERE engine = '{engine}'"
        before = await self.scalar(replies)
        await until(lambda: self._differs(replies, before), TIMEOUT_S)

    async def comes_back_elsewhere(self, engine: str) -> None:
        address = f"SELECT url FROM engines WHERE name = '{engine}'"
        before = await self.scalar(address)
        pid = self.fleet.members[engine].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: self._differs(address, before), TIMEOUT_S)
        await self.replies_of(engine)

    async def _differs(self, query: str, from_: object) -> bool:
        self.fleet.check()
        return await self.scalar(query) != from_


@asynccontextmanager
async def disturbed(folder: Path, joins: Path) -> AsyncIterator[AllAtOnce]:
    """The campaign of which a process is killed every PAUSE_S. It has finished when the block
    ends."""
    home = folder / "home"
    await asyncio.to_thread(mainspring, ROOT, "up", "--home", str(home))
    try:
        await asyncio.to_thread(start, home, "registered")
        settings = load_settings(home)
        async with open_database(settings) as db:
            config = training((await campaigns.get(db, NAME)).config)
            processes = members(settings, config, engines=())
            for process in processes:
                process.environment.update(of_tree(ROOT))
                process.imports = ()  # a fork server's code is of one release
            processes.append(joining("gpu-a", home, layout.policy(home, NAME, 0)))
            processes.append(joining("gpu-b", home, joins))
            async with (
                Fleet(processes, folder / "logs", lambda _: None) as fleet,
                asyncio.timeout(TIMEOUT_S),
                asyncio.TaskGroup() as beside,
            ):
                lives = AllAtOnce(home, db, settings.database_url, fleet)
                kept = beside.create_task(keep_until(lives.has_finished, fleet, home, print))
                killing = beside.create_task(lives.kill_at_random(random.Random(7)))
                yield lives
                await kept
                killing.cancel()
    finally:
        await asyncio.to_thread(mainspring, ROOT, "down", "--home", str(home))


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.timeout(2 * TIMEOUT_S)
async def test_a_campaign_to_which_all_happens_has_the_weights_of_an_undisturbed_one(
    tmp_path: Path,
) -> None:
    before, joins = last_release(tmp_path / "before", BEFORE), tmp_path / "join"
    plain = await asyncio.to_thread(undisturbed, tmp_path / "undisturbed")
    assert [(each.field, each.from_step) for each in plain.changes] == [
        (field.partition("=")[0], int(step)) for field, step in CHANGES
    ]
    assert len(plain.steps) == 10 and plain.weights is not None
    async with disturbed(tmp_path, joins) as lives:
        await lives.replies_of("gpu-a")
        joins.touch()
        await lives.replies_of("gpu-b")
        await lives.comes_back_elsewhere("gpu-a")
        for name in ("rollout", "sandbox"):
            await lives.replace(name, before, SCHEMA_BEFORE)
        for name in ("rollout", "sandbox"):
            await lives.replace(name, ROOT, NEEDED_REVISION)
    print(f"\n{len(lives.killed)} killed: {' '.join(lives.killed)}")
    await asyncio.to_thread(assert_same, plain, tmp_path / "home", NAME)
