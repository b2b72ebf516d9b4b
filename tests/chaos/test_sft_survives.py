"""A supervised run whose rank and whose trainer are killed in the middle: its curve and its weights
are those of a run that nothing disturbed, to the last digit."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from cli.operations.machine.embedded_stack import StackInfo
from cli.operations.machine.fleet import Fleet
from cli.operations.runs import campaign_launch as launch
from cli.operations.runs.run_launch import Conductor
from cli.operations.runs.sft_run import members, store
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.training import policies, sft, steps
from infra.policy.model.weight_files import weights_digest
from infra.temporal.connection import connect
from mainspring.config.files.reading import load_sft
from mainspring.config.settings import load_settings
from mainspring.config.sft import SftConfig
from mainspring.ids import CampaignId
from mainspring.status import CampaignStatus
from tests.sft_files import run_file, write_chats
from tests.waiting import until

TIMEOUT_S = 900.0
NUM_STEPS = 20
EVERY = 8

Disturb = Callable[[Database, CampaignId, Fleet], Awaitable[None]]


@pytest.mark.chaos
@pytest.mark.timeout(2 * TIMEOUT_S)
async def test_the_curve_is_that_of_an_undisturbed_run(stack: StackInfo, tmp_path: Path) -> None:
    write_chats(tmp_path / "chats.jsonl", 48)
    undisturbed = await trained(stack, tmp_path, "sft-undisturbed", nothing)
    killed = await trained(stack, tmp_path, "sft-killed", kill_rank_and_trainer)
    assert len(undisturbed[0]) == NUM_STEPS
    assert killed == undisturbed


async def nothing(db: Database, run: CampaignId, fleet: Fleet) -> None:
    pass


async def kill_rank_and_trainer(db: Database, run: CampaignId, fleet: Fleet) -> None:
    """Each after steps that no version has yet."""
    await reached(db, run, fleet, 3)
    [rank] = ranks_of(fleet)
    os.kill(rank.pid, signal.SIGKILL)
    await reached(db, run, fleet, EVERY + 3)
    trainer = fleet.members["trainer"].pid
    assert trainer is not None
    os.kill(trainer, signal.SIGKILL)


async def reached(db: Database, run: CampaignId, fleet: Fleet, step: int) -> None:
    while (await sft.progress(db, run))[0] < step:
        fleet.check()
        await asyncio.sleep(0.02)
    newest = await policies.latest_policy(db, run)
    assert newest is not None and newest.version <= step - 3, "the kill came too late"


def ranks_of(fleet: Fleet) -> list[psutil.Process]:
    """Workers of the Ray that the trainer started."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        said = process.info["cmdline"] or []
        if any(f"/ms-ray-{fleet.members['trainer'].pid}-" in each for each in said):
            found += [
                each for each in process.children() if "RankActor" in " ".join(each.cmdline())
            ]
    return found


async def trained(
    stack: StackInfo, folder: Path, name: str, disturb: Disturb
) -> tuple[list[tuple[float | None, ...]], list[int], str]:
    """Figures of every step, the versions, and the digest of the last one's weights."""
    config = configured(folder, name)
    settings = load_settings(stack.home)
    async with Database.open(stack.database_url) as db:
        client = await connect(settings, db)
        services = Conductor(settings, db, client, True, lambda text: None, False, None)
        run = await store(services, config)
        restarted: list[str] = []
        fleet = Fleet(
            members(settings, config), folder / name, lambda end: restarted.append(end.name)
        )
        await launch.start(client, db, run)
        async with fleet:
            await asyncio.wait_for(disturb(db, run, fleet), TIMEOUT_S)

            async def ended() -> bool:
                fleet.check()
                return (await campaigns.get(db, run)).status in campaigns.ENDS

            await until(ended, TIMEOUT_S)
        record = await campaigns.get(db, run)
        assert record.status is CampaignStatus.FINISHED, record.error
        assert restarted == ([] if disturb is nothing else ["trainer"])
        curve = [
            tuple(each.metrics[figure] for figure in ("loss", "grad_norm", "lr", "num_tokens"))
            for each in await steps.list_steps(db, run)
        ]
        versions = [each.version for each in await policies.list_policies(db, run)]
        newest = await policies.latest_policy(db, run)
    assert newest is not None
    return curve, versions, weights_digest(Path(newest.path))


def configured(folder: Path, name: str) -> SftConfig:
    file = run_file(folder / f"{name}.toml", folder / "chats.jsonl", name, num_steps=NUM_STEPS)
    text = file.read_text().replace("checkpoint_every = 4", f"checkpoint_every = {EVERY}")
    file.write_text(text.replace("batch_size = 4", "batch_size = 16"))
    return load_sft(file)
