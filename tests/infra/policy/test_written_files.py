"""Tokenizer, chat template and weights of a version that were altered are refused by name."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from temporalio.testing import ActivityEnvironment

from activities.training.publishing import PublishingActivities
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.db.training import policies
from infra.policy.model.written_files import verify_written
from infra.policy.serving import ServedCampaigns, serve_over_http
from mainspring.artifacts.layout import MANIFEST
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.ids import CampaignId
from mainspring.protocol.campaign import PolicyRef
from mainspring.training.step_metrics import Origin
from mainspring.training.training_faults import CheckpointUnusable
from migrations import upgrade
from tests.infra.db import store_records as records
from tests.infra.policy.engine_stub import engine_stub
from tests.infra.policy.tiny_model import save_tiny_model
from trainer.engines import checkpoint
from trainer.engines.checkpoint import Identity, Manifest, Sharding

CAMPAIGN = CampaignId("written")
TEMPLATE, WEIGHTS = "chat_template.jinja", "model.safetensors"


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


@pytest.fixture
def version(tmp_path: Path) -> Path:
    """Directory for engines of a version, as a trainer leaves it."""
    directory = tmp_path / "v00000"
    origin = Origin(campaign=CAMPAIGN, uid="uid", config_digest="digest")
    temporary = checkpoint.begin(directory, 1)
    save_tiny_model(temporary / checkpoint.HF_DIRECTORY)
    manifest = Manifest(
        identity=Identity(origin=origin, version=0),
        epoch=1,
        tensor_parallel=1,
        sharding=Sharding.NONE,
    )
    checkpoint.commit(temporary, directory, manifest)
    return directory / checkpoint.HF_DIRECTORY


def test_what_the_trainer_wrote_is_taken(version: Path) -> None:
    assert (version.parent / MANIFEST).is_file()
    verify_written(version, CAMPAIGN, weights=True)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda hf: flip(hf / TEMPLATE), f"has an altered file {TEMPLATE}: its SHA-256 begins"),
        (lambda hf: (hf / "tokenizer.json").unlink(), "lacks its file tokenizer.json"),
        (lambda hf: (hf.parent / MANIFEST).write_text("{"), f"{MANIFEST} is damaged"),
    ],
)
def test_what_was_altered_is_named(version: Path, spoil: Callable[[Path], None], says: str) -> None:
    spoil(version)
    with pytest.raises(CheckpointUnusable, match=says) as refused:
        verify_written(version, CAMPAIGN, weights=False)
    assert f"campaign {CAMPAIGN}: policy version {version}" in str(refused.value)


def test_weights_are_compared_where_they_are_published(version: Path) -> None:
    flip(version / WEIGHTS)
    verify_written(version, CAMPAIGN, weights=False)
    with pytest.raises(CheckpointUnusable, match=f"altered file {WEIGHTS}"):
        verify_written(version, CAMPAIGN, weights=True)


def test_a_model_that_no_trainer_wrote_is_taken_as_it_is(tmp_path: Path) -> None:
    verify_written(save_tiny_model(tmp_path / "model"), CAMPAIGN, weights=True)


@pytest.mark.parametrize("altered", [TEMPLATE, WEIGHTS])
async def test_nothing_altered_reaches_an_engine(
    fresh_database: str, version: Path, altered: str
) -> None:
    await asyncio.to_thread(upgrade.upgrade, fresh_database)
    loaded: list[object] = []
    async with Database.open(fresh_database, pool_size=2) as db:
        with engine_stub() as stub:
            stub.info = {"weight_version": "7-other"}
            stub.on_update = lambda body: loaded.append(body) or {"weight_version": "0"}
            await tasks.put_tasks(db, [records.task(0)])
            policy = PolicyConfig(model=str(version), engines=(stub.url,))
            await campaigns.create(db, CampaignConfig(name=CAMPAIGN, policy=policy))
            await policies.put_first_policy(db, CAMPAIGN, str(version))
            flip(version / altered)
            served = ServedCampaigns(db, serve_over_http)
            publish = PublishingActivities(db, served).publish_policy
            with pytest.raises(CheckpointUnusable, match=f"altered file {altered}"):
                await ActivityEnvironment().run(publish, PolicyRef(campaign=CAMPAIGN, version=0))
            await served.close()
    assert loaded == []
