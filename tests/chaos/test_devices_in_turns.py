"""A campaign whose ranks and engine have the same devices in turns (`trainer.colocate`): each pass
of a rank finds an engine without memory, whatever was killed and whenever, and none stays so."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from temporalio.client import WorkflowFailureError

from cli.operations.machine.embedded_stack import StackInfo
from infra.db import leases
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.temporal.connection import connect
from mainspring.config.campaign import CampaignConfig
from mainspring.config.settings import load_settings
from mainspring.ids import campaign_workflow
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


async def generates(url: str) -> bool:
    """Whether the engine that listens there answers requests now."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        try:
            return (await http.get("/ready")).status_code == 200
        except httpx.TransportError:
            return False


def check_never_both(file: Path, least: int) -> None:
    seen = passes(file)
    assert [p for p in seen if p["memory"] and p["memory"]["weights_bytes"]] == []
    assert sum(p["memory"] is not None for p in seen) >= least


@pytest.mark.chaos
@pytest.mark.timeout(3 * TIMEOUT_S)
async def test_ranks_and_engine_are_never_both_on_the_devices(
    stack: StackInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While each of the processes is killed where the devices change hands."""
    file = tmp_path / "watched"
    monkeypatch.setenv(WATCHED, str(file))
    settings = load_settings(stack.home)
    async with Database.open(stack.database_url) as db:
        client = await connect(settings)
        async with small_run(db, client, settings, colocated("turns"), tmp_path) as run:
            [url] = (await campaigns.get(db, run.campaign)).config.policy.engines
            await run.step_done(0)
            await until(lambda: generates(url), TIMEOUT_S)
            await turn_of_ranks(run)
            run.kill("trainer")  # while the engine gives its memory away
            await turn_of_ranks(run)
            await run.step_done(1)
            run.kill("trainer")  # before ranks have left
            await until(lambda: generates(url), TIMEOUT_S)
            await turn_of_ranks(run)
            run.kill("rollout")
            await run.step_done(2)
            await turn_of_ranks(run, begins=False)
            run.kill("rollout")  # while the engine takes its memory
            run.kill("engine")
            await until(lambda: generates(url), TIMEOUT_S)
            await turn_of_ranks(run)
            run.kill("engine")  # it is not started before the turn is over
            await run.step_done(3)
            await until(lambda: generates(url), TIMEOUT_S)
        assert {"trainer", "rollout", "engine"} == set(run.restarted)
        await check_everything_happened_once(db, run.campaign)
        check_never_both(file, 4)


@pytest.mark.chaos
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("end", [CampaignStatus.CANCELLED, CampaignStatus.FAILED])
async def test_no_engine_stays_without_memory_when_the_campaign_ends_early(
    stack: StackInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: CampaignStatus
) -> None:
    file = tmp_path / "watched"
    monkeypatch.setenv(WATCHED, str(file))
    settings = load_settings(stack.home)
    async with Database.open(stack.database_url) as db:
        client = await connect(settings)
        config = colocated(f"ends-{end.lower()}")
        if end is CampaignStatus.FAILED:
            gap = config.trainer.gap.model_copy(update={"max": 1e-12})
            trainer = config.trainer.model_copy(update={"gap": gap})
            config = config.model_copy(update={"trainer": trainer})
        with pytest.raises(WorkflowFailureError):
            async with small_run(db, client, settings, config, tmp_path) as run:
                [url] = (await campaigns.get(db, run.campaign)).config.policy.engines
                await until(lambda: generates(url), TIMEOUT_S)
                await turn_of_ranks(run)
                if end is CampaignStatus.CANCELLED:
                    await client.get_workflow_handle(campaign_workflow(run.campaign)).cancel()

                async def has_ended() -> bool:
                    return (await campaigns.get(db, run.campaign)).status is end

                await until(has_ended, TIMEOUT_S)
                assert await generates(url)
        check_never_both(file, 0)
