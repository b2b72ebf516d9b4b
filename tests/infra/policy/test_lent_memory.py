"""Engines lend their memory and take it again, while each request of it fails in turn: none is
asked for what would end it, and none generates without memory."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from engines import serving
from faulty_line import FakeEngine, Fault, fake_engine, line_to
from test_vllm_dialect import Stub, stub_vllm
from tiny_model import save_tiny_model

from infra.policy.engines.client import EngineClient
from infra.policy.engines.dialects.lent_memory import LENDING, LENT, TAKEN, lend
from infra.policy.engines.dialects.vllm import VllmDialect
from infra.policy.protocol import UnfitEngine
from infra.policy.weight_label import WeightLabel
from mainspring.errors import EngineError, EngineFailing

NEW = WeightLabel(1, "abc")
LEND = (
    "/pause_generation",
    "/model_info",
    "/server_info",
    "/update_weight_version",
    "/release_memory_occupation",
)
TAKE = (
    "/model_info",
    "/pause_generation",
    "/server_info",
    "/update_weight_version",
    "/resume_memory_occupation",
    "/update_weights_from_disk",
    "/continue_generation",
)
FAULTS = (Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.FAILS)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def real(model: Path) -> Iterator[str]:
    with serving(model) as url:
        yield url


@pytest.fixture
def fake() -> Iterator[FakeEngine]:
    with fake_engine() as engine:
        yield engine


async def lent(url: str) -> EngineError | None:
    async with EngineClient([url], timeout_s=60) as client:
        try:
            await lend(client.weights.wire, client.weights.wire.dialect, url)
        except EngineError as error:
            return error
    return None


async def published(url: str, model: Path) -> EngineError | None:
    async with EngineClient([url], timeout_s=60) as client:
        try:
            await client.publish(url, model, NEW)
        except EngineError as error:
            return error
    return None


@pytest.mark.parametrize("path", LEND)
@pytest.mark.parametrize("fault", FAULTS)
async def test_each_request_of_lending_fails_once(
    fake: FakeEngine, path: str, fault: Fault
) -> None:
    with line_to(fake.url) as line:
        line.fail(path, fault)
        assert await lent(line.url) is not None
        again = await lent(line.url)
    # SGLang does not tell whether the request that was lost had reached it.
    is_unknown = path == "/release_memory_occupation" or (
        path == "/update_weight_version" and fault is Fault.CUT_AFTER
    )
    if is_unknown:
        assert isinstance(again, EngineFailing) and fake.label == LENDING
        assert "start the engine again" in again.remedy
    else:
        assert again is None and (fake.is_lent, fake.label, fake.paused) == (True, LENT, True)
    assert not fake.died_of


@pytest.mark.parametrize("path", TAKE)
@pytest.mark.parametrize("fault", FAULTS)
async def test_each_request_of_taking_it_back_fails_once(
    fake: FakeEngine, model: Path, path: str, fault: Fault
) -> None:
    assert await lent(fake.url) is None
    with line_to(fake.url) as line:
        line.fail(path, fault)
        first = await published(line.url, model)
        second = await published(line.url, model)
    assert first is not None or fake.label == str(NEW)
    if isinstance(second, EngineFailing):  # not known: it stays held
        assert "start the engine again" in second.remedy and fake.paused
    else:
        assert second is None
        assert (fake.is_lent, fake.paused, fake.label) == (False, False, str(NEW))
    assert not fake.died_of


@pytest.mark.parametrize("path", [*LEND, *TAKE])
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_real_engine_tells_and_is_never_lost(
    real: str, model: Path, path: str, fault: Fault
) -> None:
    with line_to(real) as line:
        line.fail(path, fault)
        if await lent(line.url) is not None:
            assert await lent(line.url) is None
        async with httpx.AsyncClient(base_url=real, timeout=60) as http:
            memory = (await http.get("/server_info")).json()["memory"]
        assert memory["released"] == ["kv_cache", "weights"] and memory["weights_bytes"] == 0
        line.fail(path, fault)
        if await published(line.url, model) is not None:
            assert await published(line.url, model) is None
    body = {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 2, "ignore_eos": True}}
    async with httpx.AsyncClient(base_url=real, timeout=60) as http:
        answer = (await http.post("/generate", json=body)).json()
    assert answer["meta_info"]["weight_version"] == str(NEW)


async def test_lending_twice_is_lending_once(fake: FakeEngine) -> None:
    assert await lent(fake.url) is None
    assert await lent(fake.url) is None
    assert not fake.died_of


async def test_sglang_without_its_option_is_refused(fake: FakeEngine) -> None:
    fake.memory_saver = False
    refused = await lent(fake.url)
    assert isinstance(refused, UnfitEngine) and "--enable-memory-saver" in refused.remedy
    assert not fake.is_lent


@pytest.fixture
def vllm() -> Iterator[Stub]:
    with stub_vllm() as stub:
        yield stub


async def test_vllm_sleeps_and_wakes_held(vllm: Stub, tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model", tied=False)
    async with EngineClient([vllm.url], dialect=VllmDialect()) as client:
        wire = client.weights.wire
        with pytest.raises(UnfitEngine, match="cannot give its memory"):
            await lend(wire, wire.dialect, vllm.url)
        vllm.can_sleep = True
        wire.forget(vllm.url)
        assert await lend(wire, wire.dialect, vllm.url)
        assert vllm.sleeping and vllm.labels == [LENT]
        assert not await lend(wire, wire.dialect, vllm.url)
        await client.publish(vllm.url, model, NEW)
        paths = [path for path, _ in vllm.asked]
        assert paths.count("/sleep?level=2") == 1
        taken = paths.index("/wake_up?tags=weights&tags=kv_cache")
        assert {"new_version": TAKEN, "abort_all_requests": False} in (
            body for path, body in vllm.asked if path == "/update_weight_version"
        )
        assert taken < paths.index("/collective_rpc") < paths.index("/resume")
        assert not vllm.sleeping and vllm.labels[0].startswith(str(NEW))
