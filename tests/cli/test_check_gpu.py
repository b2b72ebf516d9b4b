"""The script that checks a GPU, on the CPU and without the packages that it does without."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ABSENT = ("megatron", "ray", "temporalio", "sqlalchemy", "asyncpg", "httpx", "starlette", "uvicorn")
WITHOUT = f"""
import runpy, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {ABSENT}:
            raise ModuleNotFoundError(f"No module named {{name!r}}")
sys.meta_path.insert(0, Absent())
sys.argv = ["check_gpu", *sys.argv[1:]]
runpy.run_module("cli.bench.ranks.check_gpu", run_name="__main__")
"""


def stage(name: str, *before: str) -> dict[str, object]:
    command = [*before, name, "--in-process", "--device", "cpu"]
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", *command], capture_output=True, text=True, timeout=600
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize("engine", ["fsdp", "plain"])
def test_a_step_has_hugging_faces_numbers(engine: str) -> None:
    told = stage(f"exact-{engine}", "-m", "cli.bench.ranks.check_gpu")["float32"]
    assert isinstance(told, dict)
    assert told["logprobs"] < 1e-5 and told["loss"] < 1e-6 and told["grad_norm_relative"] < 1e-5
    assert told["weights_in_lr"] < 0.1


def test_whole_steps_raise_the_reward_without_the_other_packages() -> None:
    told = stage("grpo-steps", "-c", WITHOUT)
    rewards = told["mean_rewards"]
    assert isinstance(rewards, list) and rewards[-1] > rewards[0] + 0.1
    assert isinstance(told["gap_max"], float) and told["gap_max"] < 1e-4


def test_a_stage_that_cannot_run_is_a_line_that_tells_why(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    command = [sys.executable, "-m", "cli.bench.ranks.check_gpu", "machine", "serving"]
    ended = subprocess.run(
        [*command, "--device", "cpu", "--model", str(tmp_path)], capture_output=True, text=True
    )
    first, second = map(json.loads, ended.stdout.splitlines())
    assert first["stage"] == "machine" and "torch" in first
    assert second["stage"] == "serving" and "error" in second
    assert ended.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nothing"], "no stage is called 'nothing'"),
        (["--model", "/nowhere"], "has no config.json"),
        ([], "sees no GPU"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    command = [sys.executable, "-m", "cli.bench.ranks.check_gpu", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 2 and told in ended.stderr and ended.stdout == ""
