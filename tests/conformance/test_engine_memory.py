"""The CPU engine gives its memory away and takes it again: nothing is answered without weights."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from engine.model.served_model import ServedModel
from engine.scheduler import GIVEN_AWAY
from tests.infra.policy.engines import Reference, running, serving, until
from tests.infra.policy.tiny_model import save_tiny_model

LONG = 250


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("models")
    return save_tiny_model(root / "old", seed=0), save_tiny_model(root / "new", seed=1)


@pytest.fixture
async def http(models: tuple[Path, Path]):
    with serving(models[0]) as url:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            yield client


def start(http: httpx.AsyncClient, ids: list[int], count: int) -> "asyncio.Task[httpx.Response]":
    params = {"max_new_tokens": count, "ignore_eos": True, "temperature": 0}
    body = {"input_ids": ids, "return_logprob": True, "sampling_params": params}
    return asyncio.create_task(http.post("/generate", json=body))


async def memory(http: httpx.AsyncClient) -> dict[str, Any]:
    return (await http.get("/server_info")).json()["memory"]


async def load(http: httpx.AsyncClient, directory: Path) -> httpx.Response:
    body = {"model_path": str(directory), "weight_version": "1"}
    return await http.post("/update_weights_from_disk", json=body)


async def test_what_is_given_away_is_free_and_requests_wait_for_new_weights(
    http: httpx.AsyncClient, models: tuple[Path, Path]
) -> None:
    before = await memory(http)
    assert before["weights_bytes"] > 0 and before["released"] == []
    under_way = start(http, [5, 6, 7, 8], LONG)
    await until(http, running(1))
    # SGLang would end here.
    refused = await http.post("/release_memory_occupation", json={})
    assert refused.status_code == 400 and "pause" in refused.json()["error"]["message"]
    await http.post("/pause_generation", json={"mode": "retract"})
    for _ in range(2):
        released = (await http.post("/release_memory_occupation", json={})).json()
        assert released == await memory(http)
        assert released["released"] == ["kv_cache", "weights"]
        assert released["weights_bytes"] == 0 and released["num_slots"] == 1
    assert (await http.get("/model_info")).json()["weight_version"] == GIVEN_AWAY
    for path, status in (("/ready", 503), ("/health", 200), ("/health_generate", 200)):
        assert (await http.get(path)).status_code == status
    early = await load(http, models[1])
    assert early.status_code == 400 and "resume_memory_occupation" in early.json()["message"]
    # To continue does not help without memory, and memory does not without weights.
    await http.post("/continue_generation", json={})
    waiting = start(http, [9, 10], 3)
    await asyncio.sleep(0.2)
    for _ in range(2):
        assert (await http.post("/resume_memory_occupation", json={})).json()["released"] == []
    await asyncio.sleep(0.2)
    assert not (under_way.done() or waiting.done())
    assert (await memory(http))["has_weights"] is False
    assert (await load(http, models[1])).status_code == 200
    assert (await memory(http)) == before
    answer = (await waiting).json()
    assert answer["output_ids"] == Reference(models[1]).greedy([9, 10], answer["output_ids"])
    assert answer["meta_info"]["weight_version"] == "1"
    whole = (await under_way).json()
    assert len(whole["output_ids"]) == LONG
    assert {span["version"] for span in whole["meta_info"]["weight_versions"]} == {"0", "1"}


async def test_the_cache_alone_can_be_given_away(
    http: httpx.AsyncClient, models: tuple[Path, Path]
) -> None:
    await http.post("/release_memory_occupation", json={"tags": ["kv_cache"]})
    kept = await memory(http)
    assert kept["released"] == ["kv_cache"] and kept["has_weights"] and kept["num_slots"] == 1
    waiting = start(http, [5, 6, 7], 3)
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await http.post("/resume_memory_occupation", json={"tags": ["kv_cache"]})
    # Weights were kept: nothing has to come.
    output = (await waiting).json()["output_ids"]
    assert output == Reference(models[0]).greedy([5, 6, 7], output)
    wrong = await http.post("/release_memory_occupation", json={"tags": ["all"]})
    assert wrong.status_code == 400


def test_the_process_is_smaller_without_weights(tmp_path: Path) -> None:
    directory = save_tiny_model(
        tmp_path / "large", hidden_size=512, intermediate_size=2048, num_hidden_layers=4
    )
    model = ServedModel(directory)
    size = model.weights_bytes
    assert size > 40e6
    process = psutil.Process()
    before = process.memory_info().rss
    model.drop_weights()
    freed = before - process.memory_info().rss
    assert model.weights_bytes == 0
    assert freed > 0.9 * size
