"""Adapters of the CPU engine, beside plain transformers with the sum made."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from safetensors.torch import load_file, save_file

from mainspring.artifacts.adapter_files import CONFIG, DIRECTORY, WEIGHTS
from tests.engine.adapter_folders import save_version
from tests.infra.policy.engines import Reference, running, serving, until
from tests.infra.policy.tiny_model import save_tiny_model

NAMES = (None, "a", "b")
PROMPT = list(range(20, 60))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str | None, Path]:
    root = tmp_path_factory.mktemp("models")
    base = save_tiny_model(root / "base", seed=0)
    return {None: base} | {
        name: save_version(root / name, base, seed) for seed, name in enumerate("ab", 1)
    }


@pytest.fixture
async def http(folders):
    with serving(folders[None]) as url:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            yield client


async def load(http: httpx.AsyncClient, name: str, version: Path) -> httpx.Response:
    body = {"lora_name": name, "lora_path": str(version / DIRECTORY)}
    return await http.post("/load_lora_adapter", json=body)


async def reply(http: httpx.AsyncClient, adapter: str | None, count: int = 30, **body):
    options = {"max_new_tokens": count, "ignore_eos": True, "temperature": 0}
    body = {"input_ids": PROMPT, "return_logprob": True, "sampling_params": options, **body}
    return await http.post("/generate", json=body | {"lora_path": adapter})


def gap(answer: httpx.Response, version: Path) -> float:
    served = answer.json()
    expected = Reference(version).logprobs(PROMPT, served["output_ids"])
    found = [entry[0] for entry in served["meta_info"]["output_token_logprobs"]]
    return max(abs(a - b) for a, b in zip(found, expected, strict=True))


async def test_each_request_has_its_own_adapter_whatever_runs_beside_it(http, folders) -> None:
    for name in "ab":
        assert (await load(http, name, folders[name])).status_code == 200
    together = await asyncio.gather(*(reply(http, name) for name in NAMES * 3))
    for name, answer in zip(NAMES * 3, together, strict=True):
        assert gap(answer, folders[name]) < 1e-4
    tokens = {tuple(answer.json()["output_ids"]) for answer in together}
    assert len(tokens) == len(NAMES), "adapters without an effect prove nothing"
    for name in NAMES:
        again = (await reply(http, name)).json()
        assert again["meta_info"]["cached_tokens"] > 0, name
        assert tuple(again["output_ids"]) in tokens
    models = (await http.get("/v1/models")).json()["data"]
    assert [card["id"] for card in models[1:]] == ["a", "b"]
    assert models[1]["parent"] == models[0]["id"]


async def test_keys_of_one_adapter_serve_no_other(http, folders) -> None:
    await load(http, "a", folders["a"])
    await reply(http, "a")
    plain = await reply(http, None)
    assert plain.json()["meta_info"]["cached_tokens"] == 0
    assert gap(plain, folders[None]) < 1e-4
    # Another adapter under the same name is another one.
    await http.post("/unload_lora_adapter", json={"lora_name": "a"})
    await load(http, "a", folders["b"])
    other = await reply(http, "a")
    assert other.json()["meta_info"]["cached_tokens"] == 0
    assert gap(other, folders["b"]) < 1e-4


async def test_an_adapter_is_removed_when_its_last_request_has_ended(http, folders) -> None:
    await load(http, "a", folders["a"])
    long = asyncio.create_task(reply(http, "a", 400))
    await until(http, running(1))
    removal = asyncio.create_task(http.post("/unload_lora_adapter", json={"lora_name": "a"}))
    async with asyncio.timeout(60):
        while (late := await reply(http, "a", 1)).status_code == 200:
            await asyncio.sleep(0.01)
    assert "adapter a is not loaded (loaded: none)" in late.json()["error"]["message"]
    assert not long.done(), "removed only after its request had ended"
    assert (await removal).status_code == 200
    assert gap(await long, folders["a"]) < 1e-4


async def test_new_frozen_weights_keep_adapters(http, folders) -> None:
    await load(http, "a", folders["a"])
    body = {"model_path": str(folders["b"]), "weight_version": "7"}
    assert (await http.post("/update_weights_from_disk", json=body)).status_code == 200
    moved = await reply(http, "a")
    assert gap(moved, folders["a"]) > 1e-2, "not on the new weights"
    await http.post("/update_weights_from_disk", json=body | {"model_path": str(folders[None])})
    assert gap(await reply(http, "a"), folders["a"]) < 1e-4


async def test_a_folder_that_does_not_fit_changes_nothing(http, folders, tmp_path) -> None:
    def broken(what: str) -> Path:
        version = save_version(tmp_path / what, folders[None], 3)
        weights, config = version / DIRECTORY / WEIGHTS, version / DIRECTORY / CONFIG
        parts = load_file(weights)
        some = next(iter(parts))
        if what == "no weights":
            weights.unlink()
        elif what == "cut":
            weights.write_bytes(weights.read_bytes()[:-100])
        elif what == "no alpha":
            config.write_text(json.dumps({"peft_type": "LORA", "r": 4}))
        elif what == "another kind":
            config.write_text(json.dumps({"peft_type": "IA3", "r": 4, "lora_alpha": 8}))
        elif what == "one half":
            save_file({k: v for k, v in parts.items() if k != some}, weights)
        elif what == "another model":
            save_file({k: v.repeat(2, 1) for k, v in parts.items()}, weights)
        elif what == "another layer":
            moved = {k.replace("layers.1.", "layers.9."): v for k, v in parts.items()}
            save_file(moved, weights)
        else:
            save_file(parts | {"base_model.model.x.lora_magnitude": parts[some].clone()}, weights)
        return version

    for what, said in (
        ("no weights", "cannot be read"),
        ("cut", "cannot be read"),
        ("no alpha", "cannot be read"),
        ("another kind", "peft_type is 'IA3'"),
        ("one half", "has no place in the served model|is no part of an adapter"),
        ("another model", "is for a matrix of"),
        ("another layer", "has no place in the served model"),
        ("more", "x.lora_magnitude is no part of an adapter"),
    ):
        answer = await load(http, "a", broken(what))
        assert answer.status_code == 400
        found = answer.json()["error_message"]
        assert any(each in found for each in said.split("|")), (what, found)
    assert (await reply(http, "a")).status_code == 400
    assert gap(await reply(http, None), folders[None]) < 1e-4
    await load(http, "a", folders["a"])
    assert "already loaded" in (await load(http, "a", folders["b"])).json()["error_message"]


async def test_a_reproducible_engine_takes_none(folders) -> None:
    with serving(folders[None], reproducible=True) as url:
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            refused = await load(http, "a", folders["a"])
            assert refused.status_code == 400
            assert "reproducible engine takes no adapters" in refused.json()["error_message"]
            assert (await http.get("/server_info")).json()["enable_lora"] is False
