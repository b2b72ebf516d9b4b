"""After a rollback a version is made again: an engine that was away still has the discarded one."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from temporalio.testing import ActivityEnvironment

from activities.replies.replies import ReplyActivities
from activities.training.publishing import PublishingActivities
from infra.db.cache import FactCache
from infra.db.database import Database
from infra.db.rollouts import groups, rollouts, turns
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.db.training import discards, policies, steps
from infra.policy.engines.client import EngineClient
from infra.policy.model.weight_files import weights_digest
from infra.policy.serving import ServedCampaigns, serve_over_http
from infra.policy.weight_label import WeightLabel
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.ids import CampaignId, GroupId, RolloutId, group_id, rollout_id
from mainspring.protocol.campaign import PolicyRef
from mainspring.protocol.rollout import GenerateInput
from mainspring.status import CampaignStatus, GroupKind
from mainspring.trajectories.turns import VersionSpan
from migrations import upgrade
from tests.infra.db import store_records as records
from tests.infra.policy.engine_stub import engine_stub
from tests.infra.policy.engines import Reference, serving
from tests.infra.policy.tiny_model import save_tiny_model

CAMPAIGN = CampaignId("rolled-back")


@pytest.fixture
async def db(fresh_database: str) -> AsyncIterator[Database]:
    await asyncio.to_thread(upgrade.upgrade, fresh_database)
    async with Database.open(fresh_database, pool_size=2) as database:
        yield database


async def begin(db: Database, model: Path, engine: str) -> None:
    policy = PolicyConfig(model=str(model), engines=(engine,), max_context=2000, max_new_tokens=12)
    await tasks.put_tasks(db, [records.task(0)])
    await campaigns.create(db, CampaignConfig(name=CAMPAIGN, policy=policy))
    await policies.put_first_policy(db, CAMPAIGN, str(model))


async def step_1(db: Database, group: int, path: Path) -> None:
    ready = await records.add_ready_group(db, group, CAMPAIGN)
    assert await steps.plan_step(db, CAMPAIGN, 1, 1) == [ready]
    await steps.commit_step(
        db, CAMPAIGN, 1, metrics={}, policy_path=str(path), checkpoint=str(path)
    )


async def greedy_rollout(db: Database, index: int) -> RolloutId:
    group: GroupId = group_id(CAMPAIGN, index)
    rollout = rollout_id(group, 0)
    await groups.create_group(
        db,
        group,
        CAMPAIGN,
        GroupKind.TRAIN,
        index=index,
        task=records.task(0).id,
        policy_version=1,
        split="train",
        rollouts=[groups.NewRollout(rollout, records.task(0).id, 0, 0.0)],
    )
    await rollouts.claim(db, rollout, "run")
    return rollout


async def digest_of(engine: str) -> str:
    async with httpx.AsyncClient(base_url=engine) as http:
        return (await http.get("/model_info")).json()["weights_digest"]


async def test_no_reply_is_of_discarded_weights(db: Database, tmp_path: Path) -> None:
    model, path = save_tiny_model(tmp_path / "v0", seed=0), tmp_path / "v1"
    with serving(model) as engine:
        await begin(db, model, engine)
        served = ServedCampaigns(db, serve_over_http)
        publish = PublishingActivities(db, served).publish_policy
        save_tiny_model(path, seed=1)
        await step_1(db, 0, path)
        ref = PolicyRef(campaign=CAMPAIGN, version=1)
        await ActivityEnvironment().run(publish, ref)
        assert await digest_of(engine) == weights_digest(path)

        # Other weights, of the same number at the same place. The engine is not told: it is away.
        await campaigns.set_status(db, CAMPAIGN, CampaignStatus.CANCELLED)
        assert await discards.rollback(db, CAMPAIGN, 1) is not None
        shutil.move(path, tmp_path / "discarded")
        save_tiny_model(path, seed=2)
        await step_1(db, 1, path)
        assert await digest_of(engine) == weights_digest(tmp_path / "discarded")

        rollout = await greedy_rollout(db, 2)
        ask = GenerateInput(rollout=rollout, epoch=0, turn=0, min_policy_version=1)
        await ActivityEnvironment().run(ReplyActivities(db, FactCache(db), served).generate, ask)
        assert await digest_of(engine) == weights_digest(path)
        await served.close()
    [reply], _ = await turns.history(db, rollout, 0)
    ids = list(reply.completion_ids)
    assert reply.spans == (VersionSpan(1, 0, len(ids)),)
    prompt = list(reply.prompt_ids)
    assert Reference(path).greedy(prompt, ids) == ids
    assert Reference(tmp_path / "discarded").greedy(prompt, ids) != ids


async def test_a_discarded_version_is_not_taken_for_a_later_one(
    db: Database, tmp_path: Path
) -> None:
    """The campaign is at version 0 again, and asks for version 0 or later."""
    model, path = save_tiny_model(tmp_path / "v0", seed=0), save_tiny_model(tmp_path / "v1", seed=1)
    with serving(model) as engine:
        await begin(db, model, engine)
        served = ServedCampaigns(db, serve_over_http)
        publish = PublishingActivities(db, served).publish_policy
        await step_1(db, 0, path)
        ref = PolicyRef(campaign=CAMPAIGN, version=1)
        await ActivityEnvironment().run(publish, ref)
        await campaigns.set_status(db, CAMPAIGN, CampaignStatus.CANCELLED)
        await discards.rollback(db, CAMPAIGN, 1)
        rollout = await greedy_rollout(db, 1)
        ask = GenerateInput(rollout=rollout, epoch=0, turn=0, min_policy_version=0)
        await ActivityEnvironment().run(ReplyActivities(db, FactCache(db), served).generate, ask)
        await served.close()
    [reply], _ = await turns.history(db, rollout, 0)
    assert [span.version for span in reply.spans] == [0]


async def test_an_engine_without_checksums_is_told_by_what_it_calls_its_weights(
    tmp_path: Path,
) -> None:
    """As SGLang: it says the name that it was given, and nothing of the values."""
    model = save_tiny_model(tmp_path / "model")
    with engine_stub() as stub:
        stub.info = {"weight_version": "1-old"}
        stub.on_update = lambda body: {"weight_version": body["weight_version"]}
        async with EngineClient([stub.url]) as client:
            assert await client.reconcile(stub.url, model, WeightLabel(1, "new"))
            assert not await client.reconcile(stub.url, model, WeightLabel(1, "new"))
            assert stub.info["weight_version"] == "1-new"
            assert await client.served_version(stub.url) == 1
            stub.info = {"weight_version": "0"}
            assert not await client.reconcile(stub.url, model, WeightLabel(0, "first"))
            stub.info = {"weight_version": "1"}
            assert await client.reconcile(stub.url, model, WeightLabel(1, "new"))
