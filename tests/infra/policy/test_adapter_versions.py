"""Policy versions as adapters of engines that keep the frozen model (publish = "adapter")."""

import asyncio
from pathlib import Path

import httpx
import pytest

from infra.policy.engines.adapter_loading import KEPT, old_ones
from infra.policy.engines.client import EngineClient
from infra.policy.engines.partial import UnknownWeights
from infra.policy.protocol import SamplingParams, Versions
from infra.policy.weight_label import WeightLabel
from mainspring.artifacts.adapter_files import DIRECTORY
from mainspring.errors import EngineError, ModelError
from mainspring.trajectories.turns import PartialCall, ReplyPart
from tests.engine.adapter_folders import save_version
from tests.infra.policy.engine_stub import engine_stub
from tests.infra.policy.engines import Reference, running, serving, serving_process, until
from tests.infra.policy.tiny_model import save_tiny_model
from tests.waiting import reached

PROMPT = list(range(20, 40))
SHORT, LONG = SamplingParams(20, temperature=0), SamplingParams(300, temperature=0)
BASE = WeightLabel(0, "ba5e")


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Of a campaign: the frozen model, then two with adapters."""
    root = tmp_path_factory.mktemp("versions")
    base = save_tiny_model(root / "v0", seed=0)
    return [base, *(save_version(root / f"v{seed}", base, seed) for seed in (1, 2))]


def label(number: int) -> WeightLabel:
    return WeightLabel(number, f"c{number}") if number else BASE


async def is_ours(each: WeightLabel) -> bool:
    return each in (WeightLabel(0), label(0), label(1), label(2))


def client_of(versions: list[Path], *engines: str) -> EngineClient:
    return EngineClient(engines, model=versions[0], is_known=is_ours, adapters=True)


async def ask(client: EngineClient, params: SamplingParams = SHORT, **options):
    return await client.generate(PROMPT, params, request_id="r", sticky="a", **options)


async def adapters_at(url: str) -> list[str]:
    async with httpx.AsyncClient(base_url=url) as http:
        return [card["id"] for card in (await http.get("/v1/models")).json()["data"][1:]]


def gap(found: PartialCall | object, version: Path) -> float:
    expected = Reference(version).logprobs(PROMPT, list(found.output_ids))
    return max(abs(a - b) for a, b in zip(found.logprobs, expected, strict=True))


async def test_each_version_is_served_by_its_adapter_on_the_frozen_model(versions) -> None:
    with serving(versions[0], weight_version="base") as url:
        async with client_of(versions, url) as client:
            for number, version in enumerate(versions):
                assert await client.reconcile(url, version, label(number))
                assert not await client.reconcile(url, version, label(number))
                reply = await ask(client, versions=Versions(number, only=True))
                assert [span.version for span in reply.spans] == [number]
                assert gap(reply, version) < 1e-4
            assert await adapters_at(url) == ["1-c1", "2-c2"]


async def test_a_reply_keeps_the_version_that_it_began_with(versions) -> None:
    """The engine calls it by the newest one: what counts is the adapter that made it."""
    with serving(versions[0], weight_version="base", step_interval_s=0.02) as url:
        async with client_of(versions, url) as client, httpx.AsyncClient(base_url=url) as http:
            await client.reconcile(url, versions[1], label(1))
            pieces: list[ReplyPart] = []
            reply = asyncio.create_task(ask(client, LONG, keep=pieces.append))
            await until(http, running(1))
            await client.reconcile(url, versions[2], label(2))
            assert not reply.done(), "nothing is paused for a new version"
            found = await reply
            assert [(span.version, span.end) for span in found.spans] == [
                (1, len(found.output_ids))
            ]
            assert gap(found, versions[1]) < 1e-4
            assert pieces and {span.version for p in pieces for span in p.spans} == {1}
            assert (await ask(client)).spans[0].version == 2


async def test_an_engine_with_another_model_gets_the_frozen_one_first(versions, tmp_path) -> None:
    """Under any label: that of another campaign, or none, or the number that ours begins with."""
    other = save_tiny_model(tmp_path / "other", seed=5)
    for told in ("base", "0", "1-other"):
        with serving(other, weight_version=told) as url:
            async with client_of(versions, url) as client:
                if told != "0":
                    with pytest.raises(UnknownWeights):
                        await ask(client)
                assert await client.reconcile(url, versions[1], label(1))
                assert gap(await ask(client), versions[1]) < 1e-4


async def test_the_number_0_proves_no_model_where_an_engine_has_no_checksum(versions) -> None:
    """As SGLang, which may have been started with any model."""
    with engine_stub() as stub:
        async with client_of(versions, stub.url) as client:
            with pytest.raises(EngineError, match="serves version 0 after loading 1-c1"):
                await client.reconcile(stub.url, versions[1], label(1))
    posted = [(path, body) for path, body in stub.asked if body]
    assert [path for path, _ in posted] == [
        "/pause_generation",
        "/update_weights_from_disk",
        "/load_lora_adapter",
        "/update_weight_version",
    ]
    assert posted[1][1] == {"model_path": str(versions[0]), "weight_version": "0"}
    assert posted[2][1]["lora_path"] == str(versions[1] / DIRECTORY)


async def test_an_engine_that_was_killed_is_given_model_and_adapter_again(versions) -> None:
    with (
        serving_process(versions[0]) as (mortal, process),
        serving(versions[0], weight_version="base") as other,
    ):
        async with client_of(versions, mortal, other) as client:
            await client.reconcile(mortal, versions[1], label(1))
            kept = asyncio.Event()
            asked = ask(client, LONG, home=mortal, keep=lambda _: kept.set())
            reply = asyncio.create_task(asked)
            await reached(kept, reply)
            process.kill()
            with pytest.raises(UnknownWeights) as stale:
                await reply
            assert stale.value.engine == other
            begun = stale.value.begun
            assert begun is not None and {span.version for span in begun.spans} == {1}
            await client.reconcile(other, versions[1], label(1))
            whole = await ask(client, LONG, begun=begun)
            assert whole.output_ids[: len(begun.completion_ids)] == begun.completion_ids
            assert gap(whole, versions[1]) < 1e-4


@pytest.mark.parametrize("died_after", ["/update_weights_from_disk", "/load_lora_adapter"])
async def test_a_publisher_that_dies_in_between_leaves_a_true_label(
    versions, died_after: str
) -> None:
    """The next one finishes what it began."""

    class Died(BaseException):
        pass

    with serving(versions[0], weight_version="base") as url:
        async with client_of(versions, url) as client:
            post = client.weights.wire.post

            async def dying(engine: str, path: str, body: dict) -> dict:
                answer = await post(engine, path, body)
                if path == died_after:
                    raise Died
                return answer

            client.weights.wire.post = dying
            with pytest.raises(Died):
                await client.reconcile(url, versions[1], label(1))
        async with client_of(versions, url) as client:
            served = await client.served_version(url)
            assert served == 0, "version 1 is served only once its adapter is there and named"
            reply = await ask(client)
            assert reply.spans[0].version == 0 and gap(reply, versions[0]) < 1e-4
            assert await client.reconcile(url, versions[1], label(1))
            assert gap(await ask(client), versions[1]) < 1e-4


async def test_several_publishers_load_once(versions) -> None:
    with serving(versions[0], weight_version="base") as url:
        async with client_of(versions, url) as client:
            done = await asyncio.gather(
                *(client.reconcile(url, versions[1], label(1)) for _ in range(4))
            )
            assert sorted(done) == [False, False, False, True]


async def test_a_version_without_adapters_is_refused_by_name(versions, tmp_path) -> None:
    bare = save_tiny_model(tmp_path / "bare", seed=1)
    with serving(versions[0], weight_version="base") as url:
        async with client_of(versions, url) as client:
            with pytest.raises(ModelError, match=f"{DIRECTORY}/adapter_config.json is missing"):
                await client.reconcile(url, bare, label(1))
            assert (await client.weights.info(url))["weight_version"] == "base"


async def test_old_adapters_are_removed(versions) -> None:
    names = {f"{number}-c" for number in range(3, 13)}
    assert old_ones(names) == [f"{number}-c" for number in range(3, 13 - KEPT)]
    with serving(versions[0], weight_version="base") as url:
        async with client_of(versions, url) as client:
            for number in range(1, KEPT + 5):
                await client.reconcile(url, versions[1], WeightLabel(number, "c"))
            loaded = await adapters_at(url)
            assert loaded == [f"{number}-c" for number in range(3, KEPT + 5)]


async def test_an_evaluation_asks_the_version_that_an_engine_serves(versions) -> None:
    """Without the adapter's name an engine answers with the frozen model."""
    with serving(versions[0], weight_version="base") as url:
        async with client_of(versions, url) as client:
            await client.reconcile(url, versions[1], label(1))
        async with EngineClient([url], any_weights=True) as client:
            assert gap(await ask(client), versions[1]) < 1e-4
            await client.weights.wire.post(url, "/update_weight_version", {"new_version": "7"})
            assert gap(await ask(client), versions[0]) < 1e-4
