"""Requests that a policy engine cannot take, in real rollouts: masked, and the engine is spared."""

import pytest
from cluster import Cluster
from scripted import ByteText

from infra.db.database import Database
from infra.db.runs import campaigns
from infra.policy.engines import client
from infra.policy.engines.client import EngineClient
from infra.policy.serving import CampaignPolicy, in_tokens
from mainspring.ids import CampaignId
from mainspring.status import StopReason
from tests.infra.policy.engine_stub import EngineStub, engine_stub


def serve_from(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, stub: EngineStub, vocab_size: int
) -> None:
    async def serve(db: Database, campaign: CampaignId) -> CampaignPolicy:
        engines = EngineClient([stub.url], vocab_size=vocab_size)
        config = (await campaigns.get(db, campaign)).config
        return in_tokens(db, campaign, config, engines, ByteText())

    monkeypatch.setattr(cluster.served, "_serve", serve)


async def test_an_id_outside_the_vocabulary_masks_the_rollout(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine_stub() as stub:
        serve_from(cluster, monkeypatch, stub, vocab_size=100)
        rollout, result = await cluster.play()
        assert stub.asked == []
    assert (result.stop_reason, result.reward) == (StopReason.INFRA_FAULT, None)
    fault = (await cluster.row(rollout)).fault
    assert fault is not None and "outside the model's vocabulary of 100" in fault


@pytest.mark.parametrize("return_s", [0.0, client.RETURN_S])
async def test_a_request_that_closes_connections_is_sent_twice(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, return_s: float
) -> None:
    """By one attempt, or by two: the first one's count reaches the second by its heartbeat, on
    whichever worker."""
    monkeypatch.setattr(client, "RETURN_S", return_s)
    monkeypatch.setattr(client, "MAX_CLOSED", 2)
    with engine_stub() as stub:
        stub.closes = True
        serve_from(cluster, monkeypatch, stub, vocab_size=257)
        rollout, result = await cluster.play()
        asked = [path for path, _ in stub.asked]
        assert asked.count("/generate") == 2 and {*asked} <= {
            "/generate",
            "/server_info",
            "/model_info",
        }
    assert (result.stop_reason, result.reward) == (StopReason.INFRA_FAULT, None)
    fault = (await cluster.row(rollout)).fault
    assert fault is not None and "closed 2 connections" in fault and stub.url in fault
