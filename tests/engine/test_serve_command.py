"""`mainspring serve` as a process: it serves, it ends cleanly, its refusals are readable."""

import importlib.util
import json
import signal
import socket
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import typer
from typer.testing import CliRunner

from cli.machine import serve
from engine.model import slots
from engine.model.slots import KvShape
from infra.policy.engines import sglang_command
from mainspring.errors import ModelError, ServiceError, UsageError
from tests.infra.policy.engines import COMMAND, serving, serving_process
from tests.infra.policy.tiny_model import save_tiny_model

Memory = namedtuple("Memory", "available")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


def run(*arguments: str) -> BaseException | None:
    app = typer.Typer()
    app.add_typer(serve.app)
    return CliRunner().invoke(app, ["serve", *arguments]).exception


def test_serves_until_terminated(model: Path) -> None:
    with serving_process(model) as (url, process):
        body = {"input_ids": [5], "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}}
        answer = httpx.post(url + "/generate", json=body).json()
        assert len(answer["output_ids"]) == 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=90) in (0, -signal.SIGTERM)


def test_a_request_that_breaks_off_in_its_body_leaves_no_traceback(model: Path) -> None:
    with serving_process(model) as (url, process):
        asked = httpx.URL(url)
        head = b"POST /generate HTTP/1.1\r\nHost: engine\r\nContent-Length: 1000\r\n\r\n{"
        with socket.create_connection((asked.host, asked.port)) as broken_off:
            broken_off.sendall(head)
        body = {"input_ids": [5], "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}}
        assert httpx.post(url + "/generate", json=body).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize("missing", ["config.json", "tokenizer", "*.safetensors"])
def test_incomplete_model_directory_is_a_usage_error(tmp_path: Path, missing: str) -> None:
    directory = save_tiny_model(tmp_path / "model")
    for file in directory.glob(f"{missing}*"):
        file.unlink()
    error = run("--model", str(directory))
    assert isinstance(error, ModelError) and error.exit_code == 2
    assert missing in str(error) and str(directory) in str(error)


def test_port_in_use_is_named(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = run("--model", str(model), "--port", str(port))
    assert isinstance(error, ServiceError) and error.exit_code == 3
    assert f"127.0.0.1:{port}" in str(error)


def test_arguments_the_cpu_engine_does_not_know_are_refused(model: Path) -> None:
    error = run("--model", str(model), "--tp", "4")
    assert isinstance(error, SystemExit) and error.code == 2


def test_devices_are_named(model: Path) -> None:
    error = run("--model", str(model), "--device", "tpu")
    assert isinstance(error, SystemExit) and error.code == 2
    if not torch.cuda.is_available():
        error = run("--model", str(model), "--device", "cuda", "--no-restart")
        assert isinstance(error, UsageError) and "--device cpu" in error.remedy


FAKE_SGLANG = """
import json, os, pathlib, sys
seen = {"argv": sys.argv[1:], "environment": dict(os.environ)}
seen["processes"] = pathlib.Path("/proc/self/cmdline").read_text().split("\\0")
print(json.dumps(seen))
"""


@pytest.fixture
def sglang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of that name, which prints what it was started with."""
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").touch()
    (tmp_path / "sglang" / "launch_server.py").write_text(FAKE_SGLANG)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def start_sglang(model: Path, *arguments: str) -> dict[str, Any]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    given = ["--model", str(model), "--engine", "sglang", "--port", str(port), *arguments]
    ran = subprocess.run(
        [sys.executable, "-c", COMMAND, "serve", "--no-restart", *given],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_sglang_is_started_in_place(model: Path, sglang: Path) -> None:
    seen = start_sglang(model, "--api-key", "s3cret", "--device", "cpu", "--context-length", "100")
    argv = seen["argv"]
    assert argv[argv.index("--model-path") + 1] == str(model)
    assert argv[argv.index("--weight-version") + 1] == "default"
    # Two tokens of its context are never generated.
    assert argv[argv.index("--context-length") + 1] == "102"
    assert "--max-running-requests" not in argv
    assert argv[argv.index("--device") + 1] == "cpu"
    assert argv[argv.index("--api-key") + 1] == "s3cret"
    assert not [word for word in seen["processes"] if "s3cret" in word]
    assert "MAINSPRING_POLICY_API_KEY" not in seen["environment"]
    assert seen["environment"]["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] == "0"
    batch = start_sglang(model, "--max-batch", "8", "--device=cpu", "--context-length", "2048")
    assert batch["argv"][batch["argv"].index("--max-running-requests") + 1] == "8"
    assert batch["argv"][batch["argv"].index("--context-length") + 1] == "2048"
    assert "--api-key" not in batch["argv"]


def test_sglang_is_not_started_with_what_it_cannot_serve(
    model: Path, sglang: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: str, directory: Path = model) -> BaseException | None:
        return run("--model", str(directory), "--engine", "sglang", "--device", "cpu", *arguments)

    error = refused(directory=model / "missing")
    assert isinstance(error, ModelError) and "no such directory" in str(error)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        error = refused("--port", str(taken.getsockname()[1]))
    assert isinstance(error, ServiceError) and "cannot listen on" in str(error)
    error = refused("--port", "0")
    assert isinstance(error, UsageError) and "--port 0" in str(error)
    error = refused("--context-length", "4096")
    assert isinstance(error, UsageError) and "the model's own (2048 tokens)" in str(error)
    monkeypatch.setattr(sglang_command, "GPUS", ("/dev/no-such-gpu",))
    error = run("--model", str(model), "--engine", "sglang")
    assert isinstance(error, ServiceError) and "no GPU" in str(error)


def test_sglang_that_is_not_installed_is_named(model: Path) -> None:
    if importlib.util.find_spec("sglang") is None:
        error = run("--model", str(model), "--engine", "sglang")
        assert isinstance(error, ServiceError) and "mainspring[gpu]" in str(error)


def test_sglang_is_started_from_an_environment_of_its_own(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which has nothing of Mainspring, and whose tools come first."""
    env = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True)
    error = run("--model", str(model), "--engine", "sglang", "--env", str(env))
    assert isinstance(error, ServiceError) and f"not installed in {env}" in str(error)
    [packages] = env.glob("lib/python*/site-packages")
    (packages / "sglang").mkdir()
    (packages / "sglang" / "__init__.py").touch()
    no_mainspring = "import importlib.util; assert importlib.util.find_spec('infra') is None\n"
    (packages / "sglang" / "launch_server.py").write_text(no_mainspring + FAKE_SGLANG)
    given = ("--api-key", "s3cret", "--device", "cpu", "--env", str(env))
    monkeypatch.chdir(Path(__file__).parents[2])
    seen = start_sglang(model, *given)
    assert seen["processes"][0] == str(env / "bin" / "python")
    assert seen["argv"][seen["argv"].index("--api-key") + 1] == "s3cret"
    assert not [word for word in seen["processes"] if "s3cret" in word]
    assert "MAINSPRING_POLICY_API_KEY" not in seen["environment"]
    assert seen["environment"]["PATH"].startswith(str(env / "bin"))
    assert seen["environment"]["VIRTUAL_ENV"] == str(env)


def test_an_environment_that_is_none_is_named(model: Path, tmp_path: Path) -> None:
    missing = tmp_path / "none"
    error = run("--model", str(model), "--engine", "sglang", "--env", str(missing))
    assert isinstance(error, UsageError) and str(missing) in str(error)
    assert "make install-gpu" in str(error)
    error = run("--model", str(model), "--env", str(missing))
    assert isinstance(error, SystemExit) and error.code == 2


def test_home_is_taken_as_by_every_other_command(model: Path, tmp_path: Path) -> None:
    error = run("--model", str(model / "missing"), "--home", str(tmp_path))
    assert isinstance(error, ModelError) and "no such directory" in str(error)


def test_the_batch_is_what_memory_allows(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SmolLM2-135M: 30 layers, 3 heads of 64, 8192 tokens; 128 slots of it need 45 GiB."""
    shape = KvShape(token_bytes=4 * 2 * 30 * 3 * 64, max_length=8192)
    gib = 2**30
    for free, batch in ((8 * gib, 5), (16 * gib, 11), (1 * gib, 1), (10_000 * gib, 64)):
        monkeypatch.setattr(slots.psutil, "virtual_memory", lambda f=free: Memory(available=f))
        assert shape.fitting_batch() == batch
    monkeypatch.setattr(slots.psutil, "virtual_memory", lambda: Memory(available=8 * gib))
    with pytest.raises(ModelError, match=r"128 slots of 8192 tokens needs 45\.0 GiB") as caught:
        shape.check(128)
    assert "--max-batch 11 fits with 8192 tokens" in caught.value.remedy
    assert "--context-length 1456 fits with --max-batch 64" in caught.value.remedy
    with serving(model, context_length=64) as url:
        assert httpx.get(url + "/server_info").json()["max_running_requests"] == 64
