"""Which engines `mainspring train` starts, where, and with how much of the machine."""

import json
from pathlib import Path

import pytest

from cli.operations.checks import checklist
from cli.operations.checks.checklist_item import State
from cli.operations.checks.shared_devices import not_lending
from cli.operations.machine import local_engines
from cli.operations.machine.local_engines import EngineKind, Hardware
from cli.operations.runs.local_campaign import members
from engine import scheduler
from engine.model.slots import KvShape
from mainspring.artifacts import layout
from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.reading import check_campaign
from mainspring.config.settings import Settings
from mainspring.ids import campaign_id
from tests.infra.policy.engines import serving
from tests.infra.policy.faulty_line import fake_engine
from tests.infra.policy.tiny_model import save_tiny_model

CPU = Hardware((), True, 16 << 30, 2)
GIB = 1 << 30


def gpus(number: int, *, has_sglang: bool = True) -> Hardware:
    return Hardware(tuple(map(str, range(number))), has_sglang, 64 * GIB, 16)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    shape = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
    shape |= {"intermediate_size": 1536, "vocab_size": 49152}
    more = {"hidden_size": 576, "model_type": "llama", "max_position_embeddings": 8192}
    (tmp_path / "config.json").write_text(json.dumps(shape | more))
    return tmp_path


def campaign(model: Path, *engines: str, **trainer: object) -> CampaignConfig:
    policy = {"model": str(model), "engines": engines, "max_context": 4096, "max_new_tokens": 256}
    return check_campaign({"name": "c", "policy": policy, "trainer": trainer}, "here")


def test_the_cpu_engines_cache_fits_into_half_of_the_memory(model: Path) -> None:
    assert local_engines.SLOTS_PER_RUNNING == scheduler.SLOTS_PER_RUNNING
    config = campaign(model, "http://127.0.0.1:30000")
    batch = local_engines.batch_that_fits(model, config, 8 * GIB)
    assert 1 < batch < local_engines.MAX_BATCH
    shape = KvShape(token_bytes=4 * 2 * 30 * 3 * 64, max_length=4096)
    size = scheduler.SLOTS_PER_RUNNING * batch * shape.slot_bytes
    assert size <= 4 * GIB < size * (batch + 1) / batch
    assert local_engines.batch_that_fits(model, config, 1) == 1


def test_a_model_without_attention_has_a_batch_too(model: Path) -> None:
    config = campaign(model, "http://127.0.0.1:30000")
    state = {"model_type": "mamba2", "hidden_size": 768, "num_hidden_layers": 24, "num_heads": 24}
    (model / "config.json").write_text(json.dumps(state | {"vocab_size": 50288}))
    assert local_engines.batch_that_fits(model, config, 8 * GIB) >= 1


def test_engines_and_trainer_have_gpus_of_their_own(model: Path) -> None:
    urls = ("http://127.0.0.1:30000", "http://127.0.0.1:30001")
    config = campaign(model, *urls, tensor_parallel=2)
    started = {each.name: each for each in members(Settings(), config, urls, gpus(4))}
    visible = {name: each.environment.get("CUDA_VISIBLE_DEVICES") for name, each in started.items()}
    assert visible["trainer"] == "0,1"
    assert (visible["engine"], visible["engine-2"]) == ("2", "3")
    assert "--mem-fraction-static" not in started["engine"].arguments
    # Two tokens that SGLang keeps for itself.
    assert "4098" in started["engine"].arguments


def test_judges_engines_are_started_beside_the_policys(model: Path) -> None:
    urls = ("http://127.0.0.1:30100", "http://127.0.0.1:30101", "http://elsewhere:30100")
    judge = {"kind": "engine", "engines": urls, "model": str(model)}
    policy = {"model": str(model), "engines": ["http://127.0.0.1:30000"], "max_context": 4096}
    part = {"name": "judge", "judge": "q", "of": "turns"}
    config = check_campaign(
        {
            "name": "c",
            "policy": policy | {"max_new_tokens": 256},
            "judges": {"q": judge},
            "reward": {"parts": [part]},
        },
        "here",
    )
    assert local_engines.judge_engines(config) == [("q", url) for url in urls]
    here = urls[:2]
    on_cpu = local_engines.judge_members(Settings(), config, here, CPU)
    assert [each.name for each in on_cpu] == ["judge", "judge-2"]
    for member, port in zip(on_cpu, ("30100", "30101"), strict=True):
        assert member.arguments[member.arguments.index("--port") + 1] == port
        # Its own context, and not the policy's.
        assert member.arguments[member.arguments.index("--context-length") + 1] == "8192"
        assert member.arguments[member.arguments.index("--model") + 1] == str(model)
    on_gpus = local_engines.judge_members(Settings(), config, here, gpus(4))
    assert [each.environment["CUDA_VISIBLE_DEVICES"] for each in on_gpus] == ["2", "3"]
    assert not local_engines.judge_members(Settings(), config, (), CPU)


def test_one_gpu_is_shared(model: Path) -> None:
    config = campaign(model, "http://127.0.0.1:30000")
    started = {each.name: each for each in members(Settings(), config, None, gpus(1))}
    assert started["engine"].environment["CUDA_VISIBLE_DEVICES"] == "0"
    fraction = started["engine"].arguments.index("--mem-fraction-static") + 1
    assert float(started["engine"].arguments[fraction]) < 0.5


def test_colocated_engines_have_the_trainers_gpus_and_can_give_memory(model: Path) -> None:
    urls = ("http://127.0.0.1:30000", "http://127.0.0.1:30001")
    trainer = {"engine": "fsdp", "data_parallel": 2, "colocate": True}
    config = campaign(model, *urls, **trainer)
    started = {each.name: each for each in members(Settings(), config, urls, gpus(2))}
    visible = {name: each.environment.get("CUDA_VISIBLE_DEVICES") for name, each in started.items()}
    assert visible["trainer"] == "0,1"
    assert (visible["engine"], visible["engine-2"]) == ("0", "1")
    for name in ("engine", "engine-2"):
        assert "--enable-memory-saver" in started[name].arguments
        assert started[name].answers is not None  # not started in the ranks' turn
    assert started["trainer"].answers is None


def test_sglang_is_started_from_the_environment_that_is_named(model: Path) -> None:
    urls = ("http://127.0.0.1:30000",)
    settings = Settings(sglang_env="/opt/sglang")
    started = members(settings, campaign(model, *urls), urls, gpus(2))
    [engine] = [each for each in started if each.name == "engine"]
    assert engine.arguments[engine.arguments.index("--env") + 1] == "/opt/sglang"


async def test_an_engine_that_cannot_give_memory_is_missing(model: Path, tmp_path: Path) -> None:
    with fake_engine() as fake:
        config = campaign(model, fake.url, engine="fsdp", colocate=True)
        assert await not_lending(config, fake.url, Settings()) is None
        fake.memory_saver = False
        why = await not_lending(config, fake.url, Settings())
    assert why is not None and "--enable-memory-saver" in why.remedy


def test_a_trainer_on_cpus_has_a_standby_that_lets_the_first_version_be_made(model: Path) -> None:
    url = "http://127.0.0.1:30000"
    config = campaign(model, url, device="cpu")
    settings = Settings(home=model)
    started = {each.name: each for each in members(settings, config, (), CPU)}
    assert started["trainer"].arguments == started["trainer-2"].arguments
    assert "--standby" in started["trainer"].arguments
    assert started["trainer"].waits_for is None
    assert started["trainer-2"].waits_for == layout.policy(model, campaign_id("c"), 0)
    on_gpu = members(settings, campaign(model, url), (), gpus(1))
    elsewhere = members(Settings(home=model, ray_address="ray:6379"), config, (), CPU)
    for each in (*on_gpu, *elsewhere):
        assert each.name != "trainer-2" and "--standby" not in each.arguments


def test_no_gpu_and_no_sglang_mean_the_cpu_engine(model: Path) -> None:
    config = campaign(model, "http://127.0.0.1:30000")
    kinds = [local_engines.kind_for(config, each) for each in (CPU, gpus(1, has_sglang=False))]
    assert kinds == [EngineKind.CPU, EngineKind.CPU]
    assert local_engines.kind_for(config, gpus(1)) is EngineKind.SGLANG


def test_an_engine_with_threads_of_its_own_is_not_forked(model: Path) -> None:
    url = "http://127.0.0.1:30000"
    bundled = CampaignConfig.model_validate(
        {"name": "c", "policy": {"engines": [url]}, "trainer": {"device": "cpu", "warm_start": {}}}
    )
    for config, is_forked in ((bundled, True), (campaign(model, url, device="cpu"), False)):
        started = {each.name: each for each in members(Settings(home=model), config, None, CPU)}
        assert bool(started["engine"].imports) is is_forked
        assert started["rollout"].imports == started["sandbox"].imports != ()
        assert started["trainer"].imports == ()


def test_sglang_here_takes_the_adapters_that_are_published(model: Path) -> None:
    url = "http://127.0.0.1:30000"
    fields = campaign(model, url).model_dump(exclude_unset=True)
    fields["trainer"]["lora"] = {"rank": 16}
    for publish, has_adapters in (("disk", False), ("adapter", True)):
        config = CampaignConfig.model_validate(
            fields | {"policy": fields["policy"] | {"publish": publish}}
        )
        started = {each.name: each for each in members(Settings(), config, (url,), gpus(2))}
        given = " ".join(started["engine"].arguments)
        assert ("--enable-lora --max-lora-rank 16" in given) is has_adapters


def reproducible(model: Path | str, *engines: str) -> CampaignConfig:
    fields = campaign(Path(model), *engines, device="cpu").model_dump(exclude_unset=True)
    return CampaignConfig.model_validate(fields | {"schedule": "reproducible"})


def test_a_reproducible_campaign_starts_reproducible_engines(model: Path) -> None:
    urls = ("http://127.0.0.1:30000", "http://127.0.0.1:30001")
    config = reproducible(model, *urls)
    assert local_engines.kind_for(config, gpus(1)) is EngineKind.CPU
    started = {each.name: each for each in members(Settings(), config, urls, gpus(1))}
    usual = {each.name: each for each in members(Settings(), campaign(model, *urls), urls, CPU)}
    for name in ("engine", "engine-2"):
        assert "--reproducible" in started[name].arguments
        assert started[name].environment["MKL_CBWR"].endswith("STRICT")
        assert "--reproducible" not in usual[name].arguments
        assert "MKL_CBWR" not in usual[name].environment


async def test_a_reproducible_campaign_refuses_other_engines(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model", max_length=4096)
    with serving(model) as usual, serving(model, reproducible=True) as fit:
        config = reproducible(model, usual, fit)
        first, second = [
            await checklist.engine_item(config, url, Settings(home=tmp_path))
            for url in config.policy.engines
        ]
    assert first is not None and first.state is State.MISSING
    assert f"mainspring serve --model {model} --reproducible" in first.fix
    assert second is not None and second.state is State.OK, second


async def test_what_cannot_be_started_here_is_missing(model: Path, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    away = campaign(model, "http://engine.invalid:30000", device="cpu")
    items = await checklist.of_this_machine(away, settings, CPU)
    # A config alone is no model: what its engine would serve is not asked.
    assert {item.what: item.state for item in items}["model"] is State.MISSING
    needs_gpus = campaign(model, "http://127.0.0.1:30000", data_parallel=2)
    [device] = [
        item
        for item in await checklist.of_this_machine(needs_gpus, settings, gpus(1))
        if item.what == "device"
    ]
    assert device.state is State.MISSING and "GPUs here: 1" in device.found


async def test_the_engine_of_the_bundled_model_is_told_with_the_folder_that_it_will_have(
    tmp_path: Path,
) -> None:
    config = CampaignConfig.model_validate(
        {
            "name": "b",
            "policy": {"model": "bundled", "engines": ["http://engine.invalid:30000"]},
            "trainer": {"warm_start": {}, "device": "cpu"},
        }
    )
    settings = Settings(home=tmp_path)
    [engine] = [
        each
        for each in await checklist.of_this_machine(config, settings, CPU)
        if each.what.startswith("engine")
    ]
    folder = layout.base_model(tmp_path, campaign_id("b"))
    assert f"mainspring serve --model {folder} (when the trainer has made" in engine.fix
    folder.mkdir(parents=True)
    assert checklist._by_hand(config, settings) == f"mainspring serve --model {folder}"


async def test_a_setting_that_does_nothing_is_a_warning(model: Path, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    config = campaign(model, "http://engine.invalid:30000", device="cpu", dual_clip=5.0)
    items = await checklist.of_this_machine(config, settings, CPU)
    [told] = [item for item in items if item.what == "settings"]
    assert told.state is State.WARNING and "trainer.dual_clip does nothing" in told.found
