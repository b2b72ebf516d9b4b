"""Each request of a load of weights fails in turn: no engine stays paused without a failure."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from engines import serving
from faulty_line import TIMEOUT_S, FakeEngine, Fault, Line, fake_engine, line_to
from temporalio.testing import ActivityEnvironment
from tiny_model import save_tiny_model

from activities.training.publishing import PublishingActivities
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.db.training import policies
from infra.policy.engines import paused
from infra.policy.engines.adapter_loading import AdapterLoading
from infra.policy.engines.client import EngineClient
from infra.policy.engines.collective import updating
from infra.policy.engines.paused import StillPaused, paused_engines
from infra.policy.engines.wire import NothingListens
from infra.policy.serving import ServedCampaigns, serve_over_http
from infra.policy.weight_label import WeightLabel
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.errors import EngineError, EngineFailing
from mainspring.ids import CampaignId
from mainspring.protocol.campaign import PolicyRef
from tests.infra.db import store_records as records

PATIENT_S = 60.0
"""For requests of tests in which each one is answered: machines stall."""
NEW = WeightLabel(1, "abc")
LOAD = ("/model_info", "/pause_generation", "/update_weights_from_disk", "/continue_generation")
SEND = (
    "/pause_generation",
    "/begin_weight_update",
    "/update_weight_version",
    "/end_weight_update",
    "/model_info",
    "/continue_generation",
)
ALWAYS = 1000
CAMPAIGN = CampaignId("c1")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("models")
    return save_tiny_model(root / "old", seed=0), save_tiny_model(root / "new", seed=1)


@pytest.fixture(scope="module")
def real(models: tuple[Path, Path]) -> Iterator[str]:
    with serving(models[0]) as url:
        yield url


@pytest.fixture
def fake() -> Iterator[FakeEngine]:
    with fake_engine() as engine:
        yield engine


@pytest.fixture
def line(fake: FakeEngine) -> Iterator[Line]:
    with line_to(fake.url) as line:
        yield line


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paused, "WAITS_S", (0.0, 0.05, 0.1))


async def asked(engine: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=engine, timeout=60) as http:
        answer = await (http.get(path) if body is None else http.post(path, json=body))
    return answer.json()


def timeout_s(line: Line) -> float:
    return TIMEOUT_S if Fault.SLOW in line.faults.values() else PATIENT_S


async def published(line: Line, model: Path, label: WeightLabel = NEW) -> EngineError | None:
    async with EngineClient([line.url], timeout_s=timeout_s(line)) as client:
        try:
            await client.publish(line.url, model, label)
        except EngineError as error:
            return error
    return None


@pytest.mark.parametrize("path", LOAD)
@pytest.mark.parametrize("fault", list(Fault))
async def test_each_request_of_a_load_fails_once(
    line: Line, fake: FakeEngine, models: tuple[Path, Path], path: str, fault: Fault
) -> None:
    line.fail(path, fault)
    failure = await published(line, models[1])
    assert not fake.paused
    assert failure is not None or fake.label == str(NEW)
    assert await published(line, models[1]) is None
    assert (fake.label, fake.paused) == (str(NEW), False)


@pytest.mark.parametrize("path", LOAD[1:])
@pytest.mark.parametrize("fault", list(Fault))
async def test_an_engine_that_cannot_be_continued_is_a_failure_that_names_it(
    line: Line, fake: FakeEngine, models: tuple[Path, Path], path: str, fault: Fault
) -> None:
    line.fail("/continue_generation", Fault.CUT_BEFORE, ALWAYS)
    if path != "/continue_generation":
        line.fail(path, fault)
    failure = await published(line, models[1])
    assert isinstance(failure, StillPaused) and line.url in failure.message
    assert "continue_generation" in failure.remedy
    if fault is Fault.FAILS and path != "/continue_generation":
        assert "its load had failed" in failure.message and "MemoryError" in failure.message
    line.heal()
    assert await published(line, models[1]) is None
    assert (fake.label, fake.paused) == (str(NEW), False)


@pytest.mark.parametrize("path", LOAD)
@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.FAILS])
async def test_each_request_of_a_load_into_a_real_engine_fails_once(
    real: str, models: tuple[Path, Path], path: str, fault: Fault
) -> None:
    label = WeightLabel(2 + LOAD.index(path), fault.value.replace(" ", ""))
    with line_to(real) as line:
        line.fail(path, fault)
        failure = await published(line, models[1], label)
        assert await paused_engines([real]) == []
        info = await asked(real, "/model_info")
        assert failure is not None or info["weight_version"] == str(label)
        assert await published(line, models[1], label) is None
        sampling = {"max_new_tokens": 2, "ignore_eos": True}
        answer = await asked(real, "/generate", {"input_ids": [5], "sampling_params": sampling})
        assert answer["meta_info"]["weight_version"] == str(label)


async def test_an_engine_that_ended_in_a_load_is_not_waited_for(models: tuple[Path, Path]) -> None:
    with fake_engine() as gone:
        url = gone.url
    async with EngineClient([url], timeout_s=PATIENT_S) as client:
        with pytest.raises(NothingListens) as caught:
            await client.publish(url, models[1], NEW)
    assert caught.value.has_ended


@pytest.mark.parametrize("path", SEND)
@pytest.mark.parametrize("fault", list(Fault))
async def test_each_request_of_sending_weights_fails_once(
    line: Line, fake: FakeEngine, models: tuple[Path, Path], path: str, fault: Fault
) -> None:
    line.fail(path, fault, times=0)
    async with EngineClient([line.url], timeout_s=timeout_s(line)) as client:

        async def send() -> None:
            async with updating(client.weights, [line.url], models[1], NEW) as update:
                line.fail(path, fault)
                await update.begin()
                assert fake.paused and fake.label.startswith("updating-")
                await update.finish()

        try:
            await send()
        except EngineError:
            assert fake.label != str(NEW) or path == "/continue_generation"
        else:
            assert fake.label == str(NEW)
        assert (fake.paused, fake.is_updating) == (False, False)
        line.heal()
        await client.publish(line.url, models[1], NEW)  # what follows
    assert (fake.label, fake.paused) == (str(NEW), False)


@pytest.mark.parametrize("path", ["/load_lora_adapter", "/update_weight_version", *LOAD])
async def test_a_load_of_adapters_leaves_no_engine_paused(
    line: Line, fake: FakeEngine, models: tuple[Path, Path], path: str
) -> None:
    """The frozen model is loaded first; adapters come without a pause."""

    async def is_ours(label: WeightLabel) -> bool:
        return True

    async with EngineClient([line.url], timeout_s=PATIENT_S) as client:
        loading = AdapterLoading(models[0], is_ours)
        line.fail(path, Fault.CUT_BEFORE)
        info: dict[str, Any] = {"weight_version": "other"}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "infra.policy.engines.adapter_loading.adapter_of", lambda version: version
            )
            with suppress(EngineError):
                await loading.load(client.weights.wire, line.url, info, models[1], NEW)
    assert not fake.paused


async def test_a_cancelled_load_leaves_no_engine_paused(
    line: Line, fake: FakeEngine, models: tuple[Path, Path]
) -> None:
    line.fail("/update_weights_from_disk", Fault.SLOW)
    loading = asyncio.create_task(published(line, models[1]))
    while not fake.paused:
        await asyncio.sleep(0.02)
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    for _ in range(100):
        if not fake.paused:
            break
        await asyncio.sleep(0.05)
    assert not fake.paused


async def test_paused_engines_are_found(fake: FakeEngine, real: str) -> None:
    nowhere = "http://127.0.0.1:9"
    assert await paused_engines([fake.url, real, nowhere]) == []
    fake.paused = True
    await asked(real, "/pause_generation", {})
    [sglang, ours] = await paused_engines([fake.url, real, nowhere])
    await asked(real, "/continue_generation", {})
    assert (sglang.paused_s, sglang.num_waiting) == (None, 3)
    assert ours.url == real and ours.paused_s is not None and 0 <= ours.paused_s < 60
    assert "continue_generation" in ours.remedy


@pytest.fixture
async def publishing(db: Database, line: Line, models: tuple[Path, Path]) -> Any:
    await tasks.put_tasks(db, [records.task(0)])
    policy = PolicyConfig(
        model=str(models[0]), engines=(line.url, "http://127.0.0.1:9"), request_timeout_s=PATIENT_S
    )
    await campaigns.create(db, CampaignConfig(name=CAMPAIGN, policy=policy))
    await policies.put_first_policy(db, CAMPAIGN, str(models[0]))
    served = ServedCampaigns(db, serve_over_http)
    activity = PublishingActivities(db, served).publish_policy
    ref = PolicyRef(campaign=CAMPAIGN, version=0)

    async def publish() -> None:
        await ActivityEnvironment().run(activity, ref)

    yield publish
    await served.close()


async def test_only_an_engine_that_nothing_listens_for_is_left_out(
    publishing: Any, line: Line, fake: FakeEngine
) -> None:
    """An error of an engine that lives is tried again, never taken for absence."""
    fake.label = "7-other"
    line.fail("/update_weights_from_disk", Fault.FAILS)
    with pytest.raises(EngineFailing, match="MemoryError"):
        await publishing()
    assert not fake.paused
    line.fail("/continue_generation", Fault.CUT_BEFORE, ALWAYS)
    with pytest.raises(StillPaused, match="does not continue"):
        await publishing()
    assert fake.paused
    line.heal()
    await publishing()
    assert not fake.paused and fake.label.startswith("0")
