"""A campaign whose ranks and engine have the same devices in turns (`trainer.colocate`): each pass
of a rank finds an engine without memory, whatever was killed and whenever, and none stays so."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.operations.machine.embedded_stack import StackInfo
from infra.db import leases
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.temporal.connection import connect
from mainspring.config.campaign import CampaignConfig
from mainspring.config.settings import load_settings
from mainspring.ids import CampaignId
from mainspring.status import CampaignStatus
from tests.chaos.small_run import (
    TIMEOUT_S,
    SmallRun,
    check_everything_happened_once,
    small_campaign,
    small_run,
)
from tests.chaos.watching_engine import WATCHED
from tests.waiting import until


def colocated(name: str) -> CampaignConfig:
    raw = small_campaign().model_dump(mode="json", exclude_unset=True)
    raw["name"] = name
    raw["trainer"] |= {
        "colocate": True,
        "engine": "tests.chaos.watching_engine:WatchingEngine",
    }
    return CampaignConfig.model_validate(raw)


async def turn_of_ranks(run: SmallRun, *, begins: bool = True) -> None:
    """Waits until the trainer has the devices, or until it has given them back."""

    async def is_so() -> bool:
        run.fleet.check()
        name = leases.devices(run.campaign)
        holder = (await leases.holders(run.db, [name])).get(name)
        return begins is (holder is not None and not holder.is_gone)

    await until(is_so, TIMEOUT_S)


def passes(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.chaos
@pytest.mark.timeout(3 * TIMEOUT_S)
async def test_ranks_and_engine_are_never_both_on_the_devices(
    stack: StackInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "watched"
    monkeypatch.setenv(WATCHED, str(file))
    settings = load_settings(stack.home)
    async with Database.open(stack.database_url) as db:
        client = await connect(settings)
        async with small_run(db, client, settings, colocated("turns"), tmp_path) as run:
            [url] = (await campaigns.get(db, run.campaign)).config.policy.engines
            await run.step_done(1)
            await turn_of_ranks(run)
            await run.step_done(3)
        await check_everything_happened_once(db, run.campaign)
        seen = passes(file)
        print(len(seen), [p for p in seen if p["memory"]][:3], url)
        assert [p for p in seen if p["memory"] and p["memory"]["weights_bytes"]] == []
        assert sum(p["memory"] is not None for p in seen) > 10
