"""Campaigns that released versions stored resume: with the file of then, and on the device at hand.

The rows are those versions' own dumps (tests/mainspring/config/releases, named by commit).
"""

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select

from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.tables.models import CampaignRow
from mainspring.config.any_run import training
from mainspring.config.files.reading import load_campaign
from mainspring.config.files.stored import RESUMED_ON, read_stored
from mainspring.config.training.parallel import PLAIN, Device
from mainspring.errors import ConfigError, UsageError
from mainspring.ids import CampaignId
from mainspring.status import CampaignKind, CampaignStatus

FOLDER = Path(__file__).parents[2] / "mainspring" / "config" / "releases"
RELEASES = sorted(file.stem for file in FOLDER.glob("*.json"))
NAME = CampaignId("old")
FILE_OF_618FAA7 = """
name = "old"
seed = 3
[tasks]
source = "mine"
[agent]
short_prompts = true
step_limit = 7
[policy]
model = "/models/m"
max_context = 4096
max_new_tokens = 512
[trainer]
num_steps = 8
groups_per_step = 2
group_size = 4
max_logprob_gap = 0.01
normalize_std = false
"""


async def put(db: Database, release: str) -> dict[str, Any]:
    raw = json.loads((FOLDER / f"{release}.json").read_text())
    row = {"id": NAME, "kind": CampaignKind.TRAIN, "config": raw}
    async with db.transaction() as connection:
        await connection.execute(
            insert(CampaignRow).values(row | {"status": CampaignStatus.CANCELLED})
        )
    return raw


async def raw_of(db: Database) -> dict[str, Any]:
    async with db.transaction() as connection:
        query = select(CampaignRow.config).where(CampaignRow.id == NAME)
        return (await connection.execute(query)).scalar_one()


@pytest.mark.parametrize("release", RELEASES)
async def test_what_it_is_read_as_resumes_it_and_its_row_stays(db: Database, release: str) -> None:
    raw = await put(db, release)
    given = training(read_stored(CampaignKind.TRAIN, raw))
    digest = (await campaigns.get(db, NAME)).config_digest
    assert not await campaigns.create(db, given)
    assert await raw_of(db) == raw
    assert (await campaigns.get(db, NAME)).config == given
    assert (await campaigns.get(db, NAME)).config_digest == digest


async def test_the_file_of_then_resumes_it_on_the_device_at_hand(
    db: Database, tmp_path: Path
) -> None:
    raw = await put(db, "train-618faa7")
    file = tmp_path / "old.toml"
    file.write_text(FILE_OF_618FAA7)
    told: list[str] = []
    given = load_campaign(file, told.append)
    assert [line.removeprefix(f"{file}: ").partition(" ")[0] for line in told] == [
        "agent.short_prompts",
        "trainer.max_logprob_gap",
        "trainer.normalize_std",
    ]
    assert 'read as kind = "bundled"' in told[0]
    with pytest.raises(ConfigError, match=r"short_prompts is called agent\.kind now"):
        load_campaign(file)  # without a place to tell it, an old name is an error
    before = await campaigns.get(db, NAME)
    assert before.lacks_device and training(before.config).trainer.device is Device.CUDA
    for device in (Device.CPU, Device.CUDA, Device.CPU):
        trainer = given.trainer.model_copy(update={"device": device})
        assert not await campaigns.create(db, given.model_copy(update={"trainer": trainer}))
        stored = await campaigns.get(db, NAME)
        read = training(stored.config).trainer
        assert (read.device, read.engine) == (device, PLAIN)
        # Checkpoints name it: what shapes the weights is as it was.
        assert stored.config_digest == before.config_digest and stored.lacks_device
    assert await raw_of(db) == raw | {RESUMED_ON: "cpu"}


async def test_a_campaign_that_has_a_device_keeps_it(db: Database) -> None:
    raw = await put(db, "train-7165609")
    given = training(read_stored(CampaignKind.TRAIN, raw))
    assert given.trainer.device is Device.CPU
    trainer = given.trainer.model_copy(update={"device": Device.CUDA})
    with pytest.raises(UsageError, match=r"trainer\.device: 'cpu' -> 'cuda'"):
        await campaigns.create(db, given.model_copy(update={"trainer": trainer}))


async def test_a_free_port_is_the_one_that_was_chosen(db: Database) -> None:
    raw = await put(db, "train-81cc106")
    given = training(read_stored(CampaignKind.TRAIN, raw))
    assert given.policy.engines == ("http://127.0.0.1:30000",)

    def at(*engines: str) -> Any:
        policy = given.policy.model_copy(update={"engines": engines})
        return given.model_copy(update={"policy": policy})

    assert not await campaigns.create(db, at("http://127.0.0.1:0"))
    assert await raw_of(db) == raw
    for other in (("http://127.0.0.1:0",) * 2, ("http://other:0",), ("http://127.0.0.1:1",)):
        with pytest.raises(UsageError, match=r"policy\.engines"):
            await campaigns.create(db, at(*other))
