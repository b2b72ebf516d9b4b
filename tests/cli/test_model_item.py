"""What the checklist finds about a campaign's model before anything is stored or started."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cli.operations.checks.checklist_item import Item, State
from cli.operations.checks.memory_item import memory_item
from cli.operations.checks.model_item import as_before, model_item
from cli.operations.checks.task_items import of_the_tasks
from cli.operations.machine.gpus_here import GpusHere
from cli.operations.runs.sft_run import train_supervised
from mainspring.config.campaign import CampaignConfig
from mainspring.config.sft import SftConfig
from mainspring.errors import ModelError
from mainspring.planning.known_models import MODELS
from tests.infra.policy.tiny_model import CHATML, save_tiny_model
from tests.trainer.any_models import save_model


def campaign(model: Path, **trainer: Any) -> CampaignConfig:
    policy = {"model": str(model), "max_context": 64, "max_new_tokens": 16}
    return CampaignConfig.model_validate({"name": "c", "policy": policy, "trainer": trainer})


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"tensor_parallel": 3}, "trainer.tensor_parallel = 3 does not divide the model's"),
        ({"pipeline_parallel": 5}, "trainer.pipeline_parallel = 5 does not divide the model's"),
        ({"expert_parallel": 2, "data_parallel": 2}, "trainer.expert_parallel = 2 does not divide"),
    ],
)
def test_sizes_that_divide_nothing_are_refused_with_both_numbers(
    tmp_path: Path, sizes: dict[str, int], says: str
) -> None:
    model = save_tiny_model(tmp_path / "model")
    assert model_item(campaign(model)).state is State.OK
    found = model_item(campaign(model, device="cuda", **sizes))
    assert found.state is State.MISSING and says in found.found and found.fix


def test_the_engine_fsdp_takes_models_that_the_others_refuse(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model")
    file = model / "config.json"
    fields = json.loads(file.read_text())
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
    file.write_text(json.dumps(fields | {"rope_parameters": yarn}))
    assert "rope_type 'yarn' cannot be trained" in model_item(campaign(model, device="cpu")).found
    assert model_item(campaign(model, device="cpu", engine="fsdp")).state is State.OK
    parts = fields["hidden_size"] + 1
    found = model_item(campaign(model, device="cpu", engine="fsdp", data_parallel=parts))
    assert found.state is State.MISSING and f"data_parallel = {parts} is more" in found.found
    file.write_text(json.dumps(fields | {"auto_map": {"AutoModel": "own.Own"}}))
    found = model_item(campaign(model, device="cpu", engine="fsdp"))
    assert found.state is State.MISSING and "auto_map cannot be trained" in found.found


QWEN3_8B = MODELS / "qwen3-8b"


@pytest.mark.parametrize(
    ("gpu_gb", "sizes", "state"),
    [
        (80, {"tensor_parallel": 8, "engine": "mcore", "dtype": "bfloat16"}, State.OK),
        (80, {"engine": "mcore", "dtype": "bfloat16"}, State.MISSING),
        (80, {"engine": "mcore", "dtype": "bfloat16", "lora": {"rank": 8}}, State.OK),
        (80, {"engine": "fsdp", "dtype": "bfloat16"}, State.MISSING),
        (80, {"engine": "fsdp", "dtype": "bfloat16", "lora": {"rank": 8}}, State.OK),
        (20, {"engine": "fsdp", "dtype": "bfloat16", "lora": {"rank": 8}}, State.MISSING),
    ],
)
def test_ranks_that_do_not_fit_this_machines_gpus_are_refused(
    gpu_gb: int, sizes: dict[str, Any], state: State
) -> None:
    seen = GpusHere("NVIDIA H100 80GB HBM3", 8, gpu_gb * 10**9)
    config = campaign(QWEN3_8B, device="cuda", **sizes)
    found = memory_item(config, seen, 25 * 10**9)
    assert found is not None and found.state is state, found
    assert f"H100 80GB HBM3 has {gpu_gb}.0 GB" in found.found
    assert memory_item(config, None, 25 * 10**9) is None


@pytest.mark.parametrize(("host_gb", "state"), [(2000, State.OK), (25, State.MISSING)])
def test_ranks_that_do_not_fit_this_machines_memory_are_refused(host_gb: int, state: State) -> None:
    found = memory_item(campaign(QWEN3_8B, device="cpu"), None, host_gb * 10**9)
    assert found is not None and found.state is state, found
    assert f"this machine has {host_gb}.0 GB" in found.found


def test_a_model_of_other_shapes_than_the_campaign_began_with_is_refused(tmp_path: Path) -> None:
    config = campaign(save_tiny_model(tmp_path / "model"))
    first = tmp_path / "home" / "campaigns" / "c" / "policies" / "v00000" / "hf"
    item = model_item(config)
    assert as_before(item, config, tmp_path / "home") is item
    save_tiny_model(first)
    assert as_before(item, config, tmp_path / "home") is item
    shutil.rmtree(first)
    save_tiny_model(first, hidden_size=64)
    found = as_before(item, config, tmp_path / "home")
    assert (
        found.state is State.MISSING and str(first) in found.found and "began with" in found.found
    )


def test_a_missing_shard_is_refused_by_name(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model")
    [weights] = model.glob("*.safetensors")
    weights.rename(tmp_path / "elsewhere")
    found = model_item(campaign(model))
    assert found.state is State.MISSING and "safetensors" in found.found


def _experts(directory: Path) -> Path:
    """A model whose experts are stacked, with a real tokenizer."""
    tokens = save_tiny_model(directory / "tokens")
    vocab_size = json.loads((tokens / "config.json").read_text())["vocab_size"]
    save_model("gpt_oss", directory / "model", vocab_size=vocab_size)
    for file in (*tokens.glob("tokenizer*"), *tokens.glob("*.jinja")):
        shutil.copy(file, directory / "model")
    return directory / "model"


def test_targets_of_adapters_that_a_model_lacks_are_named(tmp_path: Path) -> None:
    model, trainer = _experts(tmp_path), {"engine": "fsdp", "device": "cpu"}
    found = model_item(campaign(model, **trainer, lora={"rank": 4}))
    assert found.state is State.MISSING and "attention" in found.fix
    for named in ("targets = 'all'", "'gpt_oss' model", "mlp.experts.gate_up_proj is a stack"):
        assert named in found.found
    for lora in ({}, {"rank": 4, "targets": "attention"}):
        assert model_item(campaign(model, **trainer, lora=lora)).state is State.OK


async def test_a_supervised_run_refuses_them_before_it_is_stored(tmp_path: Path) -> None:
    raw = {
        "name": "s",
        "policy": {"model": str(_experts(tmp_path))},
        "data": {"sources": [{"file": str(tmp_path / "none.jsonl")}]},
        "trainer": {"engine": "fsdp", "device": "cpu", "lora": {"rank": 4}},
    }
    with pytest.raises(ModelError, match=r"trainer\.lora\.targets = 'all' of a 'gpt_oss' model"):
        await train_supervised(
            tmp_path / "home", SftConfig.model_validate(raw), print, for_a_program=False
        )
    assert not (tmp_path / "home").exists()


REFUSES_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not "
    "supported') }}{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)
BROKEN = {
    "cut": "{% for m in messages %}{{ m.content }",
    "drops replies": "<|im_start|>{{ messages[-1].content }}<|im_end|>",
    "unknown filter": "{{ messages | nonsense }}",
    "ends without a special token": "{% for m in messages %}{{ m.content }}{% endfor %}",
}


@pytest.mark.parametrize("template", BROKEN.values(), ids=BROKEN.keys())
def test_a_template_that_cannot_be_used_is_refused_before_anything_starts(
    tmp_path: Path, template: str
) -> None:
    model = save_tiny_model(tmp_path / "model")
    (model / "chat_template.jinja").write_text(template)
    found = model_item(campaign(model))
    assert found.state is State.MISSING and str(model) in found.found
    assert "template" in found.found


@pytest.mark.parametrize("left", ["", "{", "[]", '{"version": "1.0"}'])
def test_a_tokenizer_that_cannot_be_loaded_is_refused(tmp_path: Path, left: str) -> None:
    model = save_tiny_model(tmp_path / "model")
    if left:
        (model / "tokenizer.json").write_text(left)
    else:
        (model / "tokenizer.json").unlink()
    found = model_item(campaign(model))
    assert found.state is State.MISSING and str(model) in found.found, found


def test_a_template_without_a_system_role_is_refused_for_agents_that_have_one(
    tmp_path: Path,
) -> None:
    model = save_tiny_model(tmp_path / "model")
    (model / "chat_template.jinja").write_text(REFUSES_SYSTEM)
    config = campaign(model)
    found = model_item(config)
    assert found.state is State.MISSING and "System role not supported" in found.found
    own = config.model_copy(update={"agent": config.agent.model_copy(update={"kind": "codex"})})
    assert model_item(own).state is State.OK


def test_a_broken_copy_that_a_campaign_began_with_is_told_as_that(tmp_path: Path) -> None:
    config = campaign(save_tiny_model(tmp_path / "model"))
    first = tmp_path / "home" / "campaigns" / "c" / "policies" / "v00000" / "hf"
    save_tiny_model(first)
    (first / "tokenizer.json").unlink()
    found = as_before(model_item(config), config, tmp_path / "home")
    assert found.state is State.MISSING and str(first) in found.found
    assert "the copy that campaign c began with" in found.found and "another name" in found.fix


async def test_a_split_that_bundled_tasks_do_not_have_is_found_before_anything_starts() -> None:
    raw: dict[str, Any] = {"name": "c", "policy": {"model": "bundled"}}
    raw["trainer"] = {"warm_start": {}}
    for evaluation, tasks, missing in (
        ({}, {}, []),
        ({"splits": ["nosplit"]}, {}, ["split nosplit"]),
        (
            {"splits": ["heldout_templates"]},
            {"num_heldout_templates": 0},
            ["split heldout_templates"],
        ),
    ):
        config = CampaignConfig.model_validate(raw | {"evaluation": evaluation, "tasks": tasks})
        items = await of_the_tasks(config, None)
        assert [each.what for each in items if each.state is State.MISSING] == missing


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("model.safetensors", "version https://git-lfs.github.com/spec/v1\noid x\n", "git LFS"),
        ("model.safetensors.index.json", "version https://git-lfs.github.com/x\n", "git LFS"),
        ("model.safetensors.index.json", "{}", "no table `weight_map`"),
        ("model.safetensors.index.json", "[]", "no table `weight_map`"),
        ("model.safetensors.index.json", '{"weight_map": []}', "no table `weight_map`"),
    ],
)
def test_weights_that_are_none_are_told_as_what_they_are(
    tmp_path: Path, name: str, content: str, says: str
) -> None:
    model = save_tiny_model(tmp_path / "model")
    (model / name).write_text(content)
    found = model_item(campaign(model))
    assert found.state is State.MISSING and says in found.found and str(model) in found.found


@pytest.mark.parametrize("section", ["policy", "evaluation"])
def test_a_variable_that_the_template_does_not_use_is_refused(tmp_path: Path, section: str) -> None:
    model = save_tiny_model(tmp_path / "model")
    (model / "chat_template.jinja").write_text(CHATML + "{% if tone %}({{ tone }}){% endif %}")

    def found(**variables: Any) -> Item:
        sampling = {"chat_template_kwargs": variables}
        raw = campaign(model).model_dump(mode="json", include={"name", "policy"})
        if section == "policy":
            raw["policy"]["sampling"] = sampling
        else:
            raw["evaluation"] = {"sampling": {"heldout": sampling}}
        return model_item(CampaignConfig.model_validate(raw))

    assert found(tone="dry").state is State.OK
    misspelled = found(tone="dry", tune="x")
    assert misspelled.state is State.MISSING and "does not use 'tune'" in misspelled.found
    assert "chat_template_kwargs" in (misspelled.fix or "")


def test_the_bundled_models_template_has_no_variables() -> None:
    policy = {"sampling": {"chat_template_kwargs": {"enable_thinking": False}}}
    config = CampaignConfig.model_validate(
        {"name": "c", "policy": policy, "trainer": {"warm_start": {}}}
    )
    found = model_item(config)
    assert found.state is State.MISSING and "has no variables" in found.found
