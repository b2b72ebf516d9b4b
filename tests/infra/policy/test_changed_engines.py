"""Engines of a campaign that were changed: asked within some seconds, without a restart."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from infra.db.database import Database
from infra.db.runs import campaigns, changes
from infra.policy import serving
from infra.policy.engines.client import EngineClient
from infra.policy.protocol import SamplingParams
from infra.policy.serving import CampaignPolicy, ServedCampaigns, in_tokens
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.ids import CampaignId
from migrations import upgrade
from tests.infra.policy.engine_stub import EngineStub, engine_stub
from tests.workflows.scripted import ByteText

CAMPAIGN = CampaignId("moved")
PARAMS = SamplingParams(max_new_tokens=4, temperature=0)


@pytest.fixture
async def db(fresh_database: str) -> AsyncIterator[Database]:
    await asyncio.to_thread(upgrade.upgrade, fresh_database)
    async with Database.open(fresh_database, pool_size=2) as database:
        yield database


async def serve(db: Database, campaign: CampaignId) -> CampaignPolicy:
    config = (await campaigns.get(db, campaign)).config
    engines = EngineClient(config.policy.engines)
    return in_tokens(db, campaign, config, engines, ByteText(), engines)


async def ask(served: ServedCampaigns, number: int) -> None:
    engines = (await served.of(CAMPAIGN)).publisher
    assert isinstance(engines, EngineClient)
    # One rollout's requests: they prefer the engine that they went to before.
    await engines.generate([5, 6], PARAMS, request_id=str(number), sticky="a")


def generated(stub: EngineStub) -> int:
    """Number of replies that it was asked for: each engine is also asked how it is."""
    return sum(path == "/generate" for path, _ in stub.asked)


async def change(db: Database, *urls: str) -> None:
    values = [(("policy", "engines"), [*urls])]
    await changes.add(db, CAMPAIGN, values, "someone")


async def test_requests_go_to_the_engines_that_the_campaign_has_now(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "ENGINES_LOOK_S", 0.0)
    with engine_stub() as first, engine_stub() as second:
        policy = PolicyConfig(model="/m", engines=(first.url,))
        await campaigns.create(db, CampaignConfig(name=CAMPAIGN, policy=policy))
        served = ServedCampaigns(db, serve)
        await ask(served, 0)
        assert (generated(first) > 0, generated(second)) == (True, 0)

        await change(db, second.url)  # the host came back under another address
        before = generated(first)
        for number in range(1, 4):
            await ask(served, number)
        assert generated(first) == before and generated(second) > 0
        assert list((await served.of(CAMPAIGN)).engines) == [second.url]

        await change(db, first.url, second.url)
        before = generated(first), generated(second)
        await ask(served, 4)
        after = generated(first), generated(second)
        assert after[0] == before[0] and after[1] > before[1], "a rollout stays where its cache is"
        await served.close()


async def test_engines_are_looked_up_seldom(db: Database) -> None:
    with engine_stub() as first, engine_stub() as second:
        policy = PolicyConfig(model="/m", engines=(first.url,))
        await campaigns.create(db, CampaignConfig(name=CAMPAIGN, policy=policy))
        served = ServedCampaigns(db, serve)
        await ask(served, 0)
        await change(db, second.url)
        await ask(served, 1)
        assert generated(second) == 0, f"not before {serving.ENGINES_LOOK_S:g} s have passed"
        await served.close()
