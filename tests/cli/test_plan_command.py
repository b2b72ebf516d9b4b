"""`mainspring campaign plan`: exit codes, one message for what is refused, JSON, and the screen."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cli.main import app
from cli.operations.machine.gpus_here import GpusHere, parsed
from cli.operations.runs import campaign_plan
from mainspring.errors import MainspringError
from mainspring.planning.known_models import MODELS

ROOT = Path(__file__).parents[2]

CAMPAIGN = """
name = "planned"
[policy]
model = "MODEL"
max_context = 16384
dtype = "bfloat16"
[trainer]
device = "cuda"
dtype = "bfloat16"
tensor_parallel = 4
"""


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, ["campaign", "plan", *arguments])


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(model: str, *changes: tuple[str, str]) -> str:
        text = CAMPAIGN.replace("MODEL", str(MODELS / model))
        for old, new in changes:
            text = text.replace(old, new)
        (tmp_path / "campaign.toml").write_text(text)
        return str(tmp_path / "campaign.toml")

    return write


def test_what_fits_ends_with_0_and_what_does_not_with_4_and_both_numbers(write: Any) -> None:
    small = write("qwen3-8b", ("tensor_parallel = 4", 'tensor_parallel = 4\nrecompute = "full"'))
    assert run(small, "--gpu-memory-gb", "80").exit_code == 0
    large = run(write("qwen3-32b"), "--gpu-memory-gb", "80")
    assert large.exit_code == 4
    assert "does not fit: a rank needs" in large.output
    assert "a GPU has 80 GB (--gpu-memory-gb)" in large.output
    assert "set in [trainer] one of:" in large.output


def test_a_plan_of_the_engine_fsdp_tells_that_its_memory_is_an_estimate(write: Any) -> None:
    shared = ("tensor_parallel = 4", 'engine = "fsdp"\ndata_parallel = 8\nrecompute = "full"')
    found = run(write("qwen3-8b", shared), "--gpu-memory-gb", "80")
    assert found.exit_code == 0, found.output
    text = " ".join(found.output.split())
    assert "engine fsdp, bfloat16, 8 ranks on GPU (data 8)" in text
    assert "the memory of the engine 'fsdp' is an estimate" in text


def test_without_a_gpu_there_are_figures_only(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign_plan, "gpus_here", lambda: None)
    found = run(write("qwen3-32b"))
    assert found.exit_code == 0
    assert "no GPU here; give --gpu-memory-gb" in found.output


def test_gpus_of_this_machine_give_memory_and_peak(
    write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = parsed("81559, NVIDIA A100-SXM4-80GB\n81559, NVIDIA A100-SXM4-80GB\n")
    assert here == GpusHere("NVIDIA A100-SXM4-80GB", 2, 81559 * 2**20)
    assert parsed("No devices were found") is None
    monkeypatch.setattr(campaign_plan, "gpus_here", lambda: here)
    told = json.loads(run(write("qwen3-8b"), "--json").output)
    assert told["gpu_memory_bytes"] == 81559 * 2**20
    assert told["assumptions"]["peak_flops_per_rank"] == {
        "value": 312e12,
        "source": "A100, bfloat16",
    }


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "/models/Qwen3-8B"])
def test_sizes_of_known_models_need_no_folder(write: Any, name: str) -> None:
    change = (str(MODELS / "qwen3-8b"), name)
    ended = run(write("qwen3-8b", change), "--gpu-memory-gb", "141")
    assert ended.exit_code == 0, ended.output
    printed = " ".join(ended.output.split())
    assert "8.19 B parameters" in printed
    assert "is not on this machine: planned with the sizes of qwen3-8b" in printed
    assert "bottleneck: write the checkpoint" in printed and "trainer.checkpoint_every" in printed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("= 4", "= 3"), "trainer.tensor_parallel = 3 does not divide the model's"),
        (("= 4", "= 4\npipeline_parallel = 7"), "num_hidden_layers = 36"),
        (("max_context = 16384", "max_context = 65536"), "was made for 40960 tokens"),
        ((str(MODELS / "qwen3-8b"), "/nowhere/model"), "/nowhere/model: no such directory"),
        ((str(MODELS / "qwen3-8b"), "Qwen/Qwen3-99B"), "name of the Hugging Face hub"),
        ((str(MODELS / "qwen3-8b"), str(MODELS)), "no config.json"),
        (("[trainer]", "[trainr]"), "trainr: no such field; did you mean trainer?"),
    ],
)
def test_a_refusal_is_one_message(write: Any, change: tuple[str, str], message: str) -> None:
    ended = run(write("qwen3-8b", change), "--gpu-memory-gb", "80")
    error = ended.exception
    assert isinstance(error, MainspringError) and error.exit_code == 2
    assert message in error.message and error.remedy
    assert ended.output == ""


def test_an_unsupported_architecture_and_a_missing_shard_are_named(
    tmp_path: Path, write: Any
) -> None:
    sizes = json.loads((MODELS / "qwen3-8b" / "config.json").read_text())
    other = sizes | {"model_type": "gemma3", "architectures": ["Gemma3ForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(other))
    file = write("qwen3-8b")
    error = run(file, "--model", str(tmp_path)).exception
    assert isinstance(error, MainspringError) and error.exit_code == 2
    assert "'gemma3' (Gemma3ForCausalLM)" in error.message
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    index = {"weight_map": {"model.norm.weight": "model-00002-of-00005.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    error = run(file, "--model", str(tmp_path)).exception
    assert isinstance(error, MainspringError) and error.exit_code == 2
    assert "model-00002-of-00005.safetensors is missing" in error.message


def test_json_has_whole_numbers(write: Any) -> None:
    told = json.loads(run(write("qwen3-8b"), "--gpu-memory-gb", "80", "--json").output)
    assert told["model"]["num_parameters"] == 8_190_735_360
    [rank] = told["ranks"]
    sizes = [size for moment in rank["moments"].values() for size in moment.values()]
    assert all(type(size) is int for size in sizes)
    assert rank["peak_bytes"] == sum(rank["moments"][rank["peak_moment"]].values())
    for section in ("demand", "host"):
        found = {name: value for name, value in told[section].items() if name != "sandbox_cpus"}
        assert all(type(value) is int for value in found.values()), found
    assert told["step"]["total_s"] > 0 and told["step"]["bottleneck"] in told["step"]["seconds"]
    assert told["fits"] is (told["lacks_bytes"] == 0)
    assert any("planned from its config.json" in note for note in told["notes"])


def test_the_bundled_model_is_planned_without_files() -> None:
    found = run(str(ROOT / "bundled" / "quickstart.toml"), "--json")
    told = json.loads(found.output)
    assert told["model"]["path"] == "bundled" and told["model"]["num_parameters"] < 1_000_000
    assert told["trainer"]["engine"] == "plain" and told["fits"] is None


def test_a_machine_with_too_little_memory_is_told_and_not_refused(write: Any) -> None:
    cpu = (('device = "cuda"\ndtype = "bfloat16"', 'device = "cpu"'),)
    found = run(write("qwen3-32b", *cpu))
    assert found.exit_code == 0
    told = " ".join(found.output.split())
    assert "the ranks need" in told and "this machine has" in told


@pytest.mark.parametrize("model", ["qwen3-8b", "qwen3-32b"])
def test_the_screen_fits_80_columns_and_cuts_nothing(write: Any, model: str) -> None:
    stages = ("tensor_parallel = 4", "tensor_parallel = 4\npipeline_parallel = 4")
    for changes in ((), (stages,)):
        found = run(write(model, *changes), "--gpu-memory-gb", "24")
        assert found.exit_code == 4
        lines = found.output.splitlines()
        # A path stays whole, and the terminal breaks its line.
        wide = [line for line in lines if len(line) > 80 and str(MODELS) not in line]
        assert not wide
        assert "\N{HORIZONTAL ELLIPSIS}" not in found.output
        for word in ("weights", "optimizer state", "bottleneck:", "half of max_context"):
            assert word in found.output
        assert ("middle stages" in found.output) is bool(changes)


def test_settings_that_mean_nothing_and_defaults_of_a_method_are_told(write: Any) -> None:
    gspo = ("tensor_parallel = 4", 'tensor_parallel = 4\nloss = "gspo"\ndual_clip = 5')
    found = " ".join(run(write("qwen3-8b", gspo)).output.split())
    assert 'trainer.clip_low = 0.0003, as loss = "gspo" has it' in found
    assert 'trainer.dual_clip does nothing without loss = "dual_clip": leave it out' in found
    refused = run(
        write("qwen3-8b", ("max_context = 16384", "max_context = 16384\ntemperature = 0"))
    )
    assert isinstance(refused.exception, MainspringError)
    assert "policy.temperature = 0 makes all rollouts of a group the same" in str(refused.exception)


def test_planning_needs_neither_torch_nor_services(write: Any) -> None:
    program = (
        "import sys\nfrom typer.testing import CliRunner\nfrom cli.main import app\n"
        f"ended = CliRunner().invoke(app, ['campaign', 'plan', {write('qwen3-8b')!r}])\n"
        "heavy = {'torch', 'transformers', 'ray', 'temporalio', 'sqlalchemy', 'docker'}\n"
        "print(ended.exit_code, sorted(heavy & set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert ended.stdout.strip() == "0 []"


def test_fields_of_the_command_line_are_planned_with_and_dumped(
    write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write("qwen3-8b")
    monkeypatch.setenv("MAINSPRING__TRAINER__TENSOR_PARALLEL", "2")
    told = run(file, "--json", "--set", "policy.max_context=8192")
    assert told.exit_code == 0, told.output
    dumped = run(file, "--dump", "--set", "policy.max_context=8192").output
    assert "policy.max_context = 8192  # --set" in dumped
    assert "trainer.tensor_parallel = 2  # MAINSPRING__TRAINER__TENSOR_PARALLEL" in dumped
    assert f'name = "planned"  # {file}' in dumped and "# default" in dumped
    document = json.loads(run(file, "--dump", "--json").output)
    assert document["config"]["trainer"]["tensor_parallel"] == 2
    assert document["origins"]["policy.max_context"] == file
    refused = run(file, "--set", "policy.max_contxt=1")
    assert refused.exit_code == 2 or isinstance(refused.exception, MainspringError)


@pytest.mark.parametrize(
    "command",
    [
        ["eval", "run", "--source", "s", "--split", "t", "--model", "m", "--api", "openai"],
        ["sft", str(ROOT / "examples" / "sft" / "sft.toml")],
        ["train", str(ROOT / "bundled" / "quickstart.toml")],
        ["campaign", "start", str(ROOT / "bundled" / "quickstart.toml")],
    ],
)
def test_every_command_with_a_file_dumps_it(command: list[str]) -> None:
    url = ["--base-url", "http://127.0.0.1:1/v1"] if command[0] == "eval" else []
    told = CliRunner().invoke(app, [*command, *url, "--dump", "--set", "seed=41"])
    assert told.exit_code == 0, told.output
    assert "seed = 41  # --set" in told.output


@pytest.mark.parametrize("command", [["train"], ["campaign", "start"], ["sft"]])
def test_a_stored_run_takes_no_fields(command: list[str]) -> None:
    for options in (["--set", "seed=1"], ["--dump"]):
        told = CliRunner().invoke(app, [*command, "--name", "stored", *options])
        assert isinstance(told.exception, MainspringError)
        assert f"{options[0]} needs a file" in told.exception.message
