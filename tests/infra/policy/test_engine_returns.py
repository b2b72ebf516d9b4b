"""An engine that dies under a reply and is started again: waited for, and given its weights before
it is asked for tokens."""

import asyncio
from pathlib import Path

import httpx
import pytest

from infra.policy.engines import client as client_module
from infra.policy.engines.client import EngineClient
from infra.policy.engines.partial import UnknownWeights
from infra.policy.protocol import ClosesConnections, SamplingParams
from infra.policy.weight_label import WeightLabel
from tests.infra.policy.engine_stub import EngineStub, engine_stub
from tests.infra.policy.engines import serving, serving_process
from tests.infra.policy.tiny_model import save_tiny_model
from tests.waiting import reached, until

GREEDY = SamplingParams(max_new_tokens=250, temperature=0)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "RETURN_LOOK_S", 0.05)


def paths(stub: EngineStub) -> list[str]:
    return [path for path, _ in stub.asked if path != "/server_info"]


async def ask(client: EngineClient, params: SamplingParams = GREEDY, **options):
    return await client.generate([5, 6], params, request_id="r", sticky="a", **options)


async def test_a_reply_waits_for_its_engine() -> None:
    with engine_stub() as stub:
        stub.status = 503
        async with EngineClient([stub.url]) as client:
            reply = asyncio.create_task(ask(client))
            await until(lambda: paths(stub).count("/generate") >= 2)
            stub.status = 200
            assert (await reply).output_ids == (7,)
            num_asked = len(stub.asked)
            await ask(client)
    assert paths(stub)[-3:] == ["/model_info", "/generate", "/generate"]
    assert len(stub.asked) == num_asked + 1, "asked for its weights although it had answered"


async def test_another_model_is_not_sampled_from() -> None:
    with engine_stub() as stub:
        stub.closes, stub.info = True, {"weight_version": "default"}
        async with EngineClient([stub.url]) as client:
            with pytest.raises(UnknownWeights, match="serves weights 'default'") as stale:
                await ask(client)
            assert stale.value.num_closed == 1
            assert paths(stub) == ["/generate", "/model_info"]
            stub.info = {"weight_version": "0"}
            # A request that kills engines is not sent for ever, however often they come back.
            with pytest.raises(ClosesConnections):
                await ask(client, num_closed=stale.value.num_closed)


async def test_tokens_of_the_dead_engine_are_kept_while_the_next_one_gets_its_weights(
    tmp_path: Path,
) -> None:
    model = save_tiny_model(tmp_path / "model", seed=0)
    with serving_process(model) as (mortal, process):
        async with EngineClient([mortal]) as client:
            await client.reconcile(mortal, model, WeightLabel(0))
            whole = await ask(client)
        with serving(model, weight_version="default") as other:
            async with EngineClient([mortal, other]) as client:
                kept = asyncio.Event()
                reply = asyncio.create_task(ask(client, home=mortal, keep=lambda _: kept.set()))
                await reached(kept, reply)
                process.kill()
                with pytest.raises(UnknownWeights) as stale:
                    await reply
                begun = stale.value.begun
                assert begun is not None and begun.completion_ids
                assert await client.reconcile(other, model, WeightLabel(0))
                before = _generated(other)
                resumed = await ask(client, begun=begun)
                assert _generated(other) - before == 250 - len(begun.completion_ids)
    assert resumed.output_ids == whole.output_ids


def _generated(engine: str) -> int:
    state = httpx.get(f"{engine}/server_info").json()["internal_states"][0]
    return state["num_generated_tokens"]


async def test_a_request_that_gets_further_is_sent_again() -> None:
    """Engines die under it more often than a request may close connections, but it is not what
    kills them: each one gives a token."""
    num_tokens = 2 * client_module.MAX_CLOSED
    with engine_stub() as stub:
        stub.closes_after_a_token, stub.info = True, stub.info | {"stream_interval": 32}
        async with EngineClient([stub.url]) as client:
            params = SamplingParams(max_new_tokens=num_tokens, temperature=0)
            reply = await ask(client, params, keep=lambda piece: None)
    assert reply.output_ids == (7,) * num_tokens
    assert paths(stub).count("/generate") == num_tokens
