"""Pauses, weight updates and aborts of the CPU engine with requests in flight."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from safetensors.torch import load_file, save_file

from engine.model.served_model import ServedModel
from tests.infra.policy.engines import Reference, running, serving, until
from tests.infra.policy.tiny_model import save_tiny_model
from tests.waiting import DEADLINE_S

LONG = 250
"""Tokens that take long enough to interrupt, on any machine."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("models")
    return save_tiny_model(root / "old", seed=0), save_tiny_model(root / "new", seed=1)


@pytest.fixture
async def http(models: tuple[Path, Path]):
    with serving(models[0]) as url:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            yield client


def start(http: httpx.AsyncClient, ids: list[int], rid: str = "", count: int = LONG):
    body = {
        "input_ids": ids,
        "return_logprob": True,
        "sampling_params": {"max_new_tokens": count, "ignore_eos": True, "temperature": 0},
    }
    if rid:
        body["rid"] = rid
    return asyncio.create_task(http.post("/generate", json=body))


async def update(http: httpx.AsyncClient, directory: Path, **body) -> httpx.Response:
    body = {"model_path": str(directory), "weight_version": "1", **body}
    return await http.post("/update_weights_from_disk", json=body)


async def version_of(request: asyncio.Task[httpx.Response]) -> str:
    return (await request).json()["meta_info"]["weight_version"]


async def test_abort_pause_answers_with_partial_tokens(http: httpx.AsyncClient) -> None:
    request = start(http, [5, 6])
    await until(http, running(1))
    await asyncio.sleep(0.05)
    paused = await http.post("/pause_generation", json={})
    assert paused.json()["status"] == "ok"
    answer = (await request).json()
    assert answer["meta_info"]["finish_reason"] == {
        "type": "abort",
        "message": "Aborted",
        "status_code": None,
        "err_type": None,
    }
    assert 0 < len(answer["output_ids"]) < LONG
    assert len(answer["meta_info"]["output_token_logprobs"]) == len(answer["output_ids"])


@pytest.mark.parametrize("mode", ["abort", "retract", "in_place"])
async def test_new_requests_wait_while_paused(http: httpx.AsyncClient, mode: str) -> None:
    await http.post("/pause_generation", json={"mode": mode})
    request = start(http, [5], count=2)
    assert (await http.get("/ready")).status_code == 503
    assert (await http.get("/health")).status_code == 200
    await asyncio.sleep(0.2)
    assert not request.done()
    await http.post("/continue_generation", json={})
    assert (await request).status_code == 200
    assert (await http.get("/ready")).status_code == 200


async def test_retract_recomputes_kv_under_the_new_weights(
    http: httpx.AsyncClient, models: tuple[Path, Path]
) -> None:
    prompts = [[5, 6, 7], list(range(3, 60))]
    requests = [start(http, ids) for ids in prompts]
    await until(http, running(2))
    await asyncio.sleep(0.05)
    await http.post("/pause_generation", json={"mode": "retract"})
    assert (await update(http, models[1])).json()["success"] is True
    await http.post("/continue_generation", json={})
    old, new = Reference(models[0]), Reference(models[1])
    for ids, request in zip(prompts, requests, strict=True):
        answer = (await request).json()
        output, meta = answer["output_ids"], answer["meta_info"]
        cut = meta["weight_versions"][0]["end"]
        assert meta["weight_versions"] == [
            {"version": "0", "start": 0, "end": cut},
            {"version": "1", "start": cut, "end": LONG},
        ]
        assert meta["weight_version"] == "1"
        assert meta["num_retractions"] == 1
        expected = old.logprobs(ids, output[:cut]) + new.logprobs(ids + output[:cut], output[cut:])
        served = [entry[0] for entry in meta["output_token_logprobs"]]
        assert served == pytest.approx(expected, abs=1e-4)


async def test_in_place_goes_on_with_old_kv_that_nobody_else_gets(
    http: httpx.AsyncClient, models: tuple[Path, Path]
) -> None:
    prompt = list(range(3, 60))
    request = start(http, prompt)
    await until(http, running(1))
    await asyncio.sleep(0.05)
    await http.post("/pause_generation", json={"mode": "in_place"})
    flush = await http.post("/flush_cache")
    assert (flush.status_code, flush.text) == (400, "Flush cache failed.\n")
    refused = await update(http, models[1])
    assert refused.status_code == 400
    assert "paused in place" in refused.json()["message"]
    assert (await http.get("/model_info")).json()["weight_version"] == "0"
    assert (await update(http, models[1], flush_cache=False)).status_code == 200
    await http.post("/continue_generation", json={})
    for follower in (start(http, prompt, count=5), start(http, prompt, count=5)):
        answer = (await follower).json()
        expected = Reference(models[1]).logprobs(prompt, answer["output_ids"])
        served = [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]
        assert served == pytest.approx(expected, abs=1e-4)
    meta = (await request).json()["meta_info"]
    assert [span["version"] for span in meta["weight_versions"]] == ["0", "1"]
    assert meta["num_retractions"] == 0
    after = (await start(http, prompt, count=5)).json()
    assert after["output_ids"] == Reference(models[1]).greedy(prompt, after["output_ids"])


async def test_update_without_pause_waits_for_those_before_it_only(
    http: httpx.AsyncClient, models: tuple[Path, Path]
) -> None:
    before = start(http, [5, 6])
    await until(http, running(1))
    updating = asyncio.create_task(update(http, models[1]))
    async with asyncio.timeout(DEADLINE_S):
        while await version_of(start(http, [5, 6], count=3)) == "0":
            pass  # it came before the update
    assert await version_of(before) == "0"
    assert (await updating).json()["success"] is True


async def test_update_may_abort_those_before_it(
    http: httpx.AsyncClient, models: tuple[Path, Path]
) -> None:
    before = start(http, [5, 6])
    await until(http, running(1))
    assert (await update(http, models[1], abort_all_requests=True)).status_code == 200
    assert (await before).json()["meta_info"]["finish_reason"]["type"] == "abort"


def broken(kind: str, source: Path, target: Path) -> Path:
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    weights = load_file(source / "model.safetensors")
    if kind == "no_directory":
        return target / "missing"
    if kind == "no_tokenizer":
        (target / "tokenizer.json").unlink()
        (target / "tokenizer_config.json").unlink()
    elif kind == "no_weights":
        (target / "model.safetensors").unlink()
    elif kind == "cut_short":
        content = (target / "model.safetensors").read_bytes()
        (target / "model.safetensors").write_bytes(content[: len(content) // 2])
    elif kind == "other_shape":
        weights["model.norm.weight"] = weights["model.norm.weight"][:-1].clone()
    elif kind == "missing_weight":
        del weights["model.norm.weight"]
    elif kind == "unknown_weight":
        weights["model.layers.9.bias"] = weights["model.norm.weight"].clone()
    if kind in ("other_shape", "missing_weight", "unknown_weight"):
        save_file(weights, target / "model.safetensors")
    return target


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("no_directory", "no such directory"),
        ("no_tokenizer", "no tokenizer"),
        ("no_weights", "no *.safetensors"),
        ("cut_short", "model.safetensors: "),
        ("other_shape", "model.norm.weight is [31]"),
        ("missing_weight", "model.norm.weight is missing"),
        ("unknown_weight", "model.layers.9.bias has no place"),
    ],
)
async def test_unfit_weights_leave_the_old_ones(
    http: httpx.AsyncClient, models: tuple[Path, Path], tmp_path: Path, kind: str, words: str
) -> None:
    response = await update(http, broken(kind, models[1], tmp_path / "weights"))
    assert response.status_code == 400
    assert response.json()["success"] is False
    assert words in response.json()["message"]
    answer = (await start(http, [5, 6], count=10)).json()
    assert answer["meta_info"]["weight_version"] == "0"
    assert answer["output_ids"] == Reference(models[0]).greedy([5, 6], answer["output_ids"])


async def test_sharded_weights_load(
    http: httpx.AsyncClient, models: tuple[Path, Path], tmp_path: Path
) -> None:
    target = broken("no_weights", models[1], tmp_path / "sharded")
    weights = load_file(models[1] / "model.safetensors")
    names = sorted(weights)
    shards = {"model-1.safetensors": names[:5], "model-2.safetensors": names[5:]}
    for shard, members in shards.items():
        save_file({name: weights[name] for name in members}, target / shard)
    index = {"weight_map": {name: shard for shard, members in shards.items() for name in members}}
    (target / "model.safetensors.index.json").write_text(json.dumps(index))
    assert (await update(http, target)).json()["success"] is True
    answer = (await start(http, [5, 6], count=10)).json()
    assert answer["output_ids"] == Reference(models[1]).greedy([5, 6], answer["output_ids"])


async def test_abort_request_by_exact_rid(http: httpx.AsyncClient) -> None:
    requests = {rid: start(http, [5, 6], rid=rid) for rid in ("one", "one-more", "two")}
    await until(http, running(3))
    unknown = await http.post("/abort_request", json={"rid": "nobody"})
    assert (unknown.status_code, unknown.text) == (200, "")
    await http.post("/abort_request", json={"rid": "one"})
    await http.post("/abort_request", json={"rid": "two"})
    reasons = {
        rid: (await request).json()["meta_info"]["finish_reason"]["type"]
        for rid, request in requests.items()
    }
    assert reasons == {"one": "abort", "one-more": "length", "two": "abort"}


async def test_request_of_a_client_that_left_is_dropped(http: httpx.AsyncClient) -> None:
    request = start(http, [5, 6], count=1500)
    await until(http, running(1))
    request.cancel()
    await until(http, running(0))
    assert (await http.post("/flush_cache")).status_code == 200


async def test_update_weight_version_renames_and_aborts(http: httpx.AsyncClient) -> None:
    request = start(http, [5, 6])
    await until(http, running(1))
    renamed = await http.post("/update_weight_version", json={"new_version": "9"})
    assert renamed.json()["new_version"] == "9"
    assert (await request).json()["meta_info"]["finish_reason"]["type"] == "abort"
    answer = (await start(http, [5], count=1)).json()
    assert answer["meta_info"]["weight_version"] == "9"


@pytest.mark.parametrize("paused", [True, False])
@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ...")],
)
async def test_a_load_without_memory_says_so_and_the_engine_serves_as_before(
    http: httpx.AsyncClient,
    models: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    paused: bool,
    error: Exception,
) -> None:
    def load(model: ServedModel, directory: Path) -> None:
        raise error

    request = start(http, [5, 6])
    await until(http, running(1))
    with monkeypatch.context() as patch:
        patch.setattr(ServedModel, "load_weights", load)
        if paused:
            await http.post("/pause_generation", json={"mode": "retract"})
        answer = await update(http, models[1])
    assert answer.status_code == 500
    said = answer.json()["error"]["message"]
    assert said.startswith(f"out of memory ({type(error).__name__}")
    await http.post("/continue_generation", json={})
    assert (await request).json()["meta_info"]["weight_version"] == "0"
    assert (await update(http, models[1])).json()["success"]
    assert (await http.get("/health")).status_code == 200
