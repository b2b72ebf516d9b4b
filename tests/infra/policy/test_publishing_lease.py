"""One process at a time loads weights into a campaign's engines, and each load is made once."""

import asyncio
from pathlib import Path

import pytest
from engine_stub import engine_stub
from temporalio.testing import ActivityEnvironment
from tiny_model import save_tiny_model

from activities.training.publishing import PublishingActivities
from infra.db.database import Database
from infra.db.leases import ProcessLease, publishing
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.db.training import policies
from infra.policy.engines.client import EngineClient
from infra.policy.serving import ServedCampaigns, serve_over_http
from infra.policy.weight_label import WeightLabel
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.errors import EngineError
from mainspring.ids import CampaignId
from mainspring.protocol.campaign import PolicyRef
from tests.infra.db import store_records as records

CAMPAIGN = CampaignId("leased")


async def test_of_two_processes_that_find_old_weights_one_loads(
    db: Database, tmp_path: Path
) -> None:
    """And the one that waited with an older version does not take the newer one away."""
    model = save_tiny_model(tmp_path / "model")

    async def is_known(label: WeightLabel) -> bool:
        return label.uid in ("a", "b")

    with engine_stub() as stub:
        stub.info = {"weight_version": "0"}
        stub.on_update = lambda body: {"weight_version": body["weight_version"]}
        clients = [
            EngineClient([stub.url], is_known=is_known, alone=lease.held)
            for lease in (ProcessLease(db, publishing(CAMPAIGN), wait_s=60.0) for _ in range(3))
        ]
        loads = await asyncio.gather(
            *(client.reconcile(stub.url, model, WeightLabel(2, "b")) for client in clients)
        )
        assert sorted(loads) == [False, False, True]
        assert not await clients[0].reconcile(stub.url, model, WeightLabel(1, "a"))
        assert stub.info["weight_version"] == "2-b"
        # A number that is higher and not the campaign's is replaced.
        stub.info = {"weight_version": "7-x"}
        assert await clients[0].reconcile(stub.url, model, WeightLabel(2, "b"))
        for client in clients:
            await client.aclose()


async def test_one_engines_failure_is_told_as_it_is_and_the_others_are_loaded(
    db: Database, tmp_path: Path
) -> None:
    model = save_tiny_model(tmp_path / "model")
    await tasks.put_tasks(db, [records.task(0)])
    with engine_stub() as broken, engine_stub() as sound:
        for stub in (broken, sound):
            stub.info = {"weight_version": "7-other"}
        sound.on_update = lambda body: {"weight_version": body["weight_version"]}
        broken.on_update = lambda body: {"weight_version": "7-other"}
        policy = PolicyConfig(
            model=str(model), engines=(broken.url, sound.url, "http://127.0.0.1:9")
        )
        await campaigns.create(db, CampaignConfig(name=CAMPAIGN, policy=policy))
        await policies.put_first_policy(db, CAMPAIGN, str(model))
        served = ServedCampaigns(db, serve_over_http)
        publish = PublishingActivities(db, served).publish_policy
        ref = PolicyRef(campaign=CAMPAIGN, version=0)
        with pytest.raises(
            EngineError, match=rf"{broken.url} serves version 7-other after loading"
        ):
            await ActivityEnvironment().run(publish, ref)
        assert sound.info["weight_version"].startswith("0")
        await served.close()
