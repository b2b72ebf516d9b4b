"""Campaigns whose processes have clocks two hours ahead and behind, each of them killed once.

The services' clock is right. Two campaigns with the same seed and opposite clocks have one hash, no
rollout is masked, nothing is done twice and no sandbox stays; what people look at names the node.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from cli.operations.machine.embedded_stack import StackInfo
from cli.operations.machine.fleet import Member
from infra.db.connect import open_database
from infra.db.database import Database
from infra.db.reading import fingerprints
from infra.db.runs import campaigns
from infra.db.tables.models import RolloutRow
from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.temporal.connection import connect
from mainspring.algorithms.schedule import Schedule
from mainspring.artifacts.reproducibility import CampaignFingerprint
from mainspring.config.settings import Settings, load_settings
from mainspring.ids import CampaignId
from tests.chaos import wrong_clocks
from tests.chaos.small_run import (
    TIMEOUT_S,
    check_everything_happened_once,
    small_campaign,
    small_run,
)
from tests.waiting import until

HOURS = {"rollout": 2, "sandbox": -2, "trainer": 2, "trainer-2": -2, "engine": -2}


@pytest.mark.chaos
@pytest.mark.timeout(3 * TIMEOUT_S)
async def test_clocks_that_are_off_change_nothing_and_are_named(
    stack: StackInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_NODE_MIN_FREE_MEMORY_MB", "0")
    library = wrong_clocks.library(tmp_path)
    settings = load_settings(stack.home)
    async with open_database(settings) as db:
        found = [
            await _played(
                db, settings, library, name, {who: sign * off for who, off in HOURS.items()}
            )
            for name, sign in (("clocks-one-way", 1), ("clocks-the-other", -1))
        ]
    one, other = found
    assert one.weights and one.deviations == other.deviations == []
    assert one.difference(other) is None and one.weights == other.weights


async def _played(
    db: Database, settings: Settings, library: Path, name: str, hours: dict[str, int]
) -> CampaignFingerprint:
    folder = library.parent / name
    changed = {"name": name, "schedule": Schedule.REPRODUCIBLE}
    config = small_campaign().model_copy(update=changed)
    client = await connect(settings, db)

    def skewed(processes: Sequence[Member]) -> list[Member]:
        return wrong_clocks.with_clocks(processes, hours, library)

    async with small_run(db, client, settings, config, folder, skewed) as run:
        await run.step_done(0)
        await run.rollouts_running()
        await _every_screen_names_the_node(settings, run.campaign, hours["sandbox"])
        run.kill("sandbox")
        await run.step_planned(1)
        run.kill("trainer")
        await run.step_done(1)
        await run.rollouts_running()
        run.kill("rollout")
        await run.step_done(2)
        run.kill("engine")
    assert set(run.restarted) == {"sandbox", "trainer", "rollout", "engine"}
    await check_everything_happened_once(db, run.campaign)
    assert await _masked(db, run.campaign) == []
    assert await BwrapBackend(settings.home / "sandboxes").list_open() == []
    return await fingerprints.read(db, await campaigns.get(db, run.campaign), with_calls=True)


async def _masked(db: Database, campaign: CampaignId) -> list[tuple[str, str | None]]:
    async with db.transaction() as connection:
        rows = await connection.execute(
            select(RolloutRow.id, RolloutRow.fault).where(
                RolloutRow.campaign_id == campaign, RolloutRow.fault.is_not(None)
            )
        )
    return [(row.id, row.fault) for row in rows]


async def _every_screen_names_the_node(settings: Settings, campaign: str, hours: int) -> None:
    wanted = f"2 h 00 min {'ahead of' if hours > 0 else 'behind'} the database's clock"
    node = f"node {settings.node_id}"

    async def shown(*words: str) -> Any:
        return json.loads(await asyncio.to_thread(_said, settings.home, *words))

    async def all_name_it() -> bool:
        """On a machine that is stalled the node may be lost for a moment: its clock is unknown."""
        checks = {each["check"]: each["found"] for each in await shown("doctor")}
        told = (await shown("campaign", "show", campaign))["clocks"]
        [listed] = [
            each for each in await shown("node", "list") if each["node"] == settings.node_id
        ]
        assert listed["seen_s"] >= 0.0
        return (
            checks.get(f"clock of {node}") == wanted
            and checks["clock of this machine"] == "as the database's"
            and told == {node: wanted}
            and abs(listed["clock_off_s"] - 3600 * hours) < 5.0
        )

    await until(all_name_it)


def _said(home: Path, *words: str) -> str:
    command = [sys.executable, "-m", "mainspring", *words, "--json", "--home", str(home)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
