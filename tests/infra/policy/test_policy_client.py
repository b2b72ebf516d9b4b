"""The client against real engines: balancing, faults, aborts, publishing."""

import asyncio
from pathlib import Path

import httpx
import pytest

from infra.policy.engines import client as client_module
from infra.policy.engines.client import EngineClient
from infra.policy.engines.partial import UnknownWeights
from infra.policy.model.weight_files import weights_digest
from infra.policy.protocol import (
    ClosesConnections,
    Completion,
    Engines,
    MalformedReply,
    NoEngineAnswered,
    SamplingParams,
    TokenOutOfVocabulary,
    Versions,
)
from infra.policy.weight_label import WeightLabel
from mainspring.errors import EngineError, EngineFailing, ModelError
from mainspring.model_folder.weights import SINGLE
from mainspring.trajectories.turns import VersionSpan
from tests.infra.policy.engine_stub import REPLY, engine_stub
from tests.infra.policy.engines import Reference, running, serving, serving_process, until
from tests.infra.policy.tiny_model import save_tiny_model

NOWHERE = "http://127.0.0.1:9"
"""The discard port: nothing listens."""
LONG = SamplingParams(max_new_tokens=250, temperature=0)
SHORT = SamplingParams(max_new_tokens=4)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("models")
    return save_tiny_model(root / "old", seed=0), save_tiny_model(root / "new", seed=1)


@pytest.fixture
def engine(models: tuple[Path, Path]):
    with serving(models[0]) as url:
        yield url


@pytest.fixture
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """For an engine that is started again."""
    monkeypatch.setattr(client_module, "RETURN_S", 0.0)


async def ask(client: EngineClient, sticky: str, params: SamplingParams = SHORT, **options):
    return await client.generate([5, 6], params, request_id="r", sticky=sticky, **options)


async def long_one(client: EngineClient, engine: str, **options) -> asyncio.Task[Completion]:
    """A greedy request that is under way."""
    request = asyncio.create_task(ask(client, "a", LONG, home=engine, **options))
    async with httpx.AsyncClient(base_url=engine) as http:
        await until(http, running(1))
    await asyncio.sleep(0.03)
    return request


async def test_completion_as_served(engine: str, models: tuple[Path, Path]) -> None:
    async with EngineClient([engine + "/"]) as client:
        engines: Engines = client
        served = await engines.generate([5, 6], SHORT, request_id="r", sticky="a")
        assert await client.served_version(engine) == 0
    assert len(served.output_ids) == 4 and served.finish_reason == "length"
    assert served.spans == (VersionSpan(0, 0, 4),)
    assert served.latency_s > 0
    expected = Reference(models[0]).logprobs([5, 6], list(served.output_ids))
    assert served.logprobs == pytest.approx(expected, abs=1e-4)


async def test_stop_token_ends_the_completion(engine: str) -> None:
    async with EngineClient([engine]) as client:
        free = await ask(client, "a", SamplingParams(max_new_tokens=8, temperature=0))
        stop = free.output_ids[3]
        params = SamplingParams(max_new_tokens=8, temperature=0, stop_token_ids=(stop,))
        stopped = await ask(client, "a", params)
    assert stopped.finish_reason == "stop"
    assert stopped.output_ids == free.output_ids[: free.output_ids.index(stop) + 1]


async def test_refused_for_good_is_an_engine_error(engine: str) -> None:
    async with EngineClient([engine]) as client:
        with pytest.raises(EngineError, match="maximum context length"):
            await client.generate([5] * 3000, SHORT, request_id="r", sticky="a")


async def test_api_key(models: tuple[Path, Path]) -> None:
    with serving(models[0], api_key="k") as url:
        async with EngineClient([url], api_key="k") as client:
            assert (await ask(client, "a")).finish_reason == "length"
        async with EngineClient([url]) as client:
            with pytest.raises(EngineError, match="refuses the API key"):
                await ask(client, "a")


async def test_keys_stick_and_new_keys_go_where_least_runs(models: tuple[Path, Path]) -> None:
    with (
        serving(models[0], weight_version="1") as one,
        serving(models[0], weight_version="2") as two,
    ):
        async with EngineClient([one, two]) as client:
            keys = [f"rollout-{index}" for index in range(10)]
            turns = [await asyncio.gather(*(ask(client, key) for key in keys)) for _ in range(3)]
    engines_by_turn = [[answer.spans[0].version for answer in turn] for turn in turns]
    assert engines_by_turn[0].count(1) == engines_by_turn[0].count(2) == 5
    assert engines_by_turn[1] == engines_by_turn[2] == engines_by_turn[0]


async def test_a_killed_engine_costs_nothing_but_time(models: tuple[Path, Path]) -> None:
    with serving_process(models[0]) as (mortal, process), serving(models[0]) as other:
        async with EngineClient([mortal, other]) as client:
            under_way = await long_one(client, mortal)
            process.kill()
            assert len((await under_way).output_ids) == LONG.max_new_tokens
            assert (await ask(client, "a")).finish_reason == "length"


@pytest.mark.usefixtures("_no_wait")
async def test_no_engine_at_all_is_a_connection_error(models: tuple[Path, Path]) -> None:
    async with EngineClient([NOWHERE]) as client:
        with pytest.raises(ConnectionError, match="no policy engine answered"):
            await ask(client, "a")
        with pytest.raises(ConnectionError):
            await client.publish(NOWHERE, models[1], WeightLabel(1))


async def test_aborted_completion_goes_on_from_its_tokens(
    engine: str, models: tuple[Path, Path]
) -> None:
    async with EngineClient([engine]) as client, httpx.AsyncClient(base_url=engine) as http:
        request = await long_one(client, engine)
        await http.post("/pause_generation", json={"mode": "abort"})
        body = {"model_path": str(models[1]), "weight_version": "7"}
        assert (await http.post("/update_weights_from_disk", json=body)).status_code == 200
        await http.post("/continue_generation", json={})
        served = await request
    first, second = served.spans
    assert (first.version, second.version) == (0, 7)
    assert (first.start, first.end, second.end) == (0, second.start, 250)
    output, cut = list(served.output_ids), first.end
    assert served.finish_reason == "length"
    expected = Reference(models[0]).logprobs([5, 6], output[:cut])
    expected += Reference(models[1]).logprobs([5, 6, *output[:cut]], output[cut:])
    assert served.logprobs == pytest.approx(expected, abs=1e-4)


async def test_aborts_under_one_version_merge_into_one_span(engine: str) -> None:
    async with EngineClient([engine]) as client, httpx.AsyncClient(base_url=engine) as http:
        whole = await ask(client, "a", LONG)
        request = await long_one(client, engine)
        for _ in range(2):
            await http.post("/abort_request", json={"abort_all": True})
            await asyncio.sleep(0.1)
        served = await request
    assert served.spans == (VersionSpan(0, 0, 250),)
    assert served.output_ids == whole.output_ids


async def test_publish_moves_requests_under_way_to_the_new_weights(
    engine: str, models: tuple[Path, Path]
) -> None:
    async with EngineClient([engine]) as client:
        request = await long_one(client, engine)
        await client.publish(engine, models[1], WeightLabel(1))
        assert await client.served_version(engine) == 1
        assert [span.version for span in (await request).spans] == [0, 1]


async def test_publish_again_only_lets_the_engine_go_on(
    engine: str, models: tuple[Path, Path]
) -> None:
    """A publisher that died after loading left the engine paused."""
    async with EngineClient([engine]) as client, httpx.AsyncClient(base_url=engine) as http:
        await client.publish(engine, models[1], WeightLabel(1))
        await http.post("/pause_generation", json={"mode": "retract"})
        await client.publish(engine, models[1], WeightLabel(1))
        assert (await ask(client, "a")).spans == (VersionSpan(1, 0, 4),)


def copied(source: Path, target: Path) -> Path:
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


async def test_weights_that_are_not_whole_never_reach_an_engine(
    models: tuple[Path, Path], tmp_path: Path
) -> None:
    cut = copied(models[1], tmp_path / "cut")
    (cut / SINGLE).write_bytes((cut / SINGLE).read_bytes()[:-100])
    other = save_tiny_model(tmp_path / "other", max_length=2048, vocab_size=352)
    bare = copied(models[1], tmp_path / "bare")
    for file in bare.glob("tokenizer*"):
        file.unlink()
    with engine_stub() as stub:
        async with EngineClient([stub.url], model=models[0]) as client:
            for directory, words in (
                (tmp_path / "missing", "no such directory"),
                (cut, f"{SINGLE}: .* the file is cut"),
                (other, "embed_tokens.weight is .352, 32., expected .320, 32."),
                (bare, "no tokenizer"),
            ):
                with pytest.raises(ModelError, match=words):
                    await client.publish(stub.url, directory, WeightLabel(1))
        assert {path for path, _ in stub.asked} == {"/model_info"}


async def test_failed_publish_leaves_the_engine_generating(
    engine: str, models: tuple[Path, Path], tmp_path: Path
) -> None:
    """No weights are known to compare with: what the engine refuses is an error as well."""
    other = save_tiny_model(tmp_path / "other", vocab_size=352)
    async with EngineClient([engine]) as client:
        with pytest.raises(EngineError, match=r"embed_tokens\.weight is"):
            await client.publish(engine, other, WeightLabel(1))
        assert (await ask(client, "a")).spans == (VersionSpan(0, 0, 4),)


async def test_weights_are_compared_by_checksum(models: tuple[Path, Path]) -> None:
    with serving(models[0], weight_version="1") as engine:
        async with EngineClient([engine]) as client, httpx.AsyncClient(base_url=engine) as http:
            info = (await http.get("/model_info")).json()
            assert info["weights_digest"] == weights_digest(models[0])
            # Right by its number, another campaign's by its weights.
            assert await client.reconcile(engine, models[1], WeightLabel(1))
            assert not await client.reconcile(engine, models[1], WeightLabel(1))
            info = (await http.get("/model_info")).json()
            assert info["weights_digest"] == weights_digest(models[1])


async def test_an_engine_that_kept_its_old_weights_is_found_out(
    models: tuple[Path, Path],
) -> None:
    with engine_stub() as stub:
        stub.info = {"weight_version": "0", "weights_digest": "of the old ones"}
        stub.on_update = lambda body: {"weight_version": body["weight_version"]}
        async with EngineClient([stub.url]) as client:
            with pytest.raises(EngineError, match=r"differ from those in .* by checksum"):
                await client.publish(stub.url, models[1], WeightLabel(1))
        assert [path for path, _ in stub.asked][-2:] == ["/continue_generation", "/model_info"]


async def test_what_is_sent(models: tuple[Path, Path]) -> None:
    with engine_stub() as stub:
        async with EngineClient([stub.url]) as client:
            for request_id in ("r.1", "r.1", "r.10"):
                await client.generate([5], SHORT, request_id=request_id, sticky="a")
        bodies = [body for _, body in stub.asked]
    sampling = {"max_new_tokens": 4, "temperature": 1.0, "stop_token_ids": []}
    whole = {"top_p": 1.0, "top_k": -1, "min_p": 0.0}
    assert [body["sampling_params"] for body in bodies] == [sampling | whole] * 3
    rids = [body["rid"] for body in bodies]
    assert not [(a, b) for a in rids for b in rids if a != b and b.startswith(a)]
    assert len(set(rids)) == 3 and all("r.1" in rid for rid in rids)


@pytest.mark.usefixtures("_no_wait")
async def test_ids_outside_the_vocabulary_are_not_sent(models: tuple[Path, Path]) -> None:
    async with EngineClient([NOWHERE], vocab_size=320) as client:
        for ids in ([5, 320], [-1]):
            with pytest.raises(TokenOutOfVocabulary, match=f"r: id {ids[-1]} at position"):
                await client.generate(ids, SHORT, request_id="r", sticky="a")
        with pytest.raises(NoEngineAnswered):
            await client.generate([319], SHORT, request_id="r", sticky="a")


async def test_a_request_that_kills_engines_is_not_handed_to_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "MAX_CLOSED", 2)
    with engine_stub() as one, engine_stub() as two, engine_stub() as three:
        for stub in (one, two, three):
            stub.closes = True
        async with EngineClient([one.url, two.url, three.url]) as client:
            with pytest.raises(ClosesConnections, match="closed 2 connections") as caught:
                await ask(client, "a")
        asked = [stub for stub in (one, two, three) if stub.asked]
        assert [len(stub.asked) for stub in asked] == [1, 1]
        assert all(stub.url in caught.value.message for stub in asked)
    with engine_stub() as one:
        one.closes = True
        async with EngineClient([one.url]) as client:
            monkeypatch.setattr(client_module, "RETURN_S", 0.0)
            with pytest.raises(NoEngineAnswered) as away:
                await ask(client, "a")
            assert away.value.num_closed == 1
            with pytest.raises(ClosesConnections):
                await ask(client, "a", num_closed=1)
            monkeypatch.undo()
            with pytest.raises(ClosesConnections, match="closed 5 connections"):
                await ask(client, "a")


@pytest.mark.usefixtures("_no_wait")
async def test_engines_that_answer_and_fail_are_told_from_those_that_are_away() -> None:
    with engine_stub() as stub:
        async with EngineClient([stub.url]) as client:
            stub.status = 500
            with pytest.raises(EngineFailing, match="HTTP 500"):
                await ask(client, "a")
            stub.status = 503
            with pytest.raises(NoEngineAnswered, match="HTTP 503") as away:
                await ask(client, "a")
            assert away.value.num_closed == 0
            stub.status = 200
            stub.reply = {"output_ids": [1]}
            with pytest.raises(MalformedReply, match="another shape"):
                await ask(client, "a")


async def test_unknown_weights_are_reported_and_reconciled(models: tuple[Path, Path]) -> None:
    with serving(models[0], weight_version="default") as engine:
        async with EngineClient([engine]) as client:
            assert await client.served_version(engine) is None
            with pytest.raises(UnknownWeights) as caught:
                await ask(client, "a")
            assert (caught.value.engine, caught.value.served) == (engine, "default")
            loads = await asyncio.gather(
                *(client.reconcile(engine, models[1], WeightLabel(3)) for _ in range(5))
            )
            assert sorted(loads) == [False] * 4 + [True]
            assert (await ask(client, "a", versions=Versions(3))).spans == (VersionSpan(3, 0, 4),)
            with pytest.raises(UnknownWeights, match="serves weights '3', expected version 4"):
                await ask(client, "a", versions=Versions(4))


@pytest.mark.parametrize("ended", ["abort", "error", "cancelled"])
async def test_a_reply_that_the_engine_cut_off_is_continued_and_never_a_turn(ended: str) -> None:
    with engine_stub() as stub:
        meta = stub.reply["meta_info"] | {"finish_reason": {"type": ended}}
        nothing = meta | {"output_token_logprobs": [], "weight_versions": []}
        stub.reply = {"output_ids": [], "meta_info": nothing}
        async with EngineClient([stub.url]) as client:
            asked = asyncio.create_task(ask(client, "a"))
            while sum(path == "/generate" for path, _ in stub.asked) < 2:
                await asyncio.sleep(0.02)
            assert not asked.done()
            stub.reply = dict(REPLY)
            assert (await asked).finish_reason == "stop"
            stub.reply = {
                "output_ids": [],
                "meta_info": nothing | {"finish_reason": {"type": "stop"}},
            }
            with pytest.raises(MalformedReply, match="without a token"):
                await ask(client, "b")
