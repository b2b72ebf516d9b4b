"""`mainspring serve` as a process: it serves, it ends cleanly, its refusals are readable."""

import os
import signal
import socket
import sys
from pathlib import Path

import httpx
import pytest
import typer
from typer.testing import CliRunner

from mainspring.cli import serve
from mainspring.errors import EngineError, ModelError, ServiceError
from tests.infra.policy.engines import serving_process
from tests.infra.policy.tiny_model import save_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


def run(*arguments: str) -> BaseException | None:
    app = typer.Typer()
    app.callback()(lambda: None)
    serve.register(app)
    return CliRunner().invoke(app, ["serve", *arguments]).exception


def test_serves_until_terminated(model: Path) -> None:
    with serving_process(model) as (url, process):
        body = {"input_ids": [5], "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}}
        answer = httpx.post(url + "/generate", json=body).json()
        assert len(answer["output_ids"]) == 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=90) in (0, -signal.SIGTERM)


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
    assert isinstance(error, EngineError) and error.exit_code == 3
    assert f"127.0.0.1:{port}" in str(error)


def test_arguments_the_cpu_engine_does_not_know_are_refused(model: Path) -> None:
    error = run("--model", str(model), "--tp", "4")
    assert isinstance(error, SystemExit) and error.code == 2


def test_sglang_is_started_in_place(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if serve.importlib.util.find_spec("sglang") is None:
        error = run("--model", str(model), "--engine", "sglang")
        assert isinstance(error, ServiceError) and "mainspring[gpu]" in str(error)
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    started: list[str] = []
    monkeypatch.setattr(os, "execv", lambda path, command: started.extend(command))
    error = run("--model", str(model), "--engine", "sglang", "--api-key", "k", "--tp", "4")
    assert error is None or started
    assert started[:3] == [sys.executable, "-m", "sglang.launch_server"]
    assert started[started.index("--weight-version") + 1] == "default"
    assert started[started.index("--api-key") + 1] == "k"
    assert started[-2:] == ["--tp", "4"]
