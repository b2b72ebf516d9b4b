"""The process that `mainspring serve --engine sglang` becomes, checked before it starts.

SGLang finds a wrong folder, a taken port or a missing GPU only minutes into its start. Raises
UsageError or ServiceError for what cannot work. Used by the command alone.

`python -m infra.policy.engines.sglang_command ARGUMENTS` is that process: `python -m
sglang.launch_server ARGUMENTS` with its API key from the environment, so that the process list
shows no secret. It runs on hosts without the trainer's torch.
"""

import os
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path

from infra.policy.engines.engine_check import SGLANG_SPARE_TOKENS
from infra.policy.engines.engine_environment import has_module, python_of, variables
from infra.policy.engines.reply_stream import INTERVAL_TOKENS
from infra.policy.model.model_files import check_servable, read_facts
from infra.tcp import listen
from mainspring.errors import ServiceError, UsageError

GPUS = ("/dev/nvidia0", "/dev/kfd", "/dev/dxg")
"""Device files of NVIDIA's, AMD's and WSL's drivers."""
KEY_VARIABLE = "MAINSPRING_POLICY_API_KEY"
HEALTH_VARIABLE = "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"
"""Otherwise /health generates a token, and waits 20 s for it while the engine is paused."""


@dataclass(frozen=True, slots=True)
class EngineProcess:
    arguments: list[str]
    environment: dict[str, str]


def sglang_command(
    *,
    model: Path,
    host: str,
    port: int,
    weight_version: str,
    max_batch: int | None,
    context_length: int | None,
    api_key: str,
    extra: list[str],
    env: Path | None = None,
) -> EngineProcess:
    """`env`: the environment that has SGLang; None: this one."""
    python = python_of(env)
    if not has_module(python, "sglang"):
        raise ServiceError(
            f"SGLang is not installed in {'this environment' if env is None else env}",
            remedy="on a GPU host: `make install-gpu`, then --env with its folder, or pip install "
            "'mainspring[gpu]' in an environment without the trainer; on a CPU: --engine cpu",
        )
    check_servable(model)
    check_port(port, host, "SGLang")
    if not any(name.partition("=")[0] == "--device" for name in extra) and not has_gpu():
        raise ServiceError(
            f"no GPU is on this machine (none of {', '.join(GPUS)})",
            remedy="use --engine cpu, or add --device with a device that SGLang has",
        )
    arguments = [python, "-m", "infra.policy.engines.sglang_command"]
    if env is not None:
        arguments = [python, "-c", _LAUNCH]  # it has nothing of this package
    arguments += ["--model-path", str(model), "--host", host, "--port", str(port)]
    arguments += ["--weight-version", weight_version]
    # Replies are stored in pieces; its default repeats the whole reply for every token.
    arguments += ["--stream-interval", str(INTERVAL_TOKENS), "--incremental-streaming-output"]
    if max_batch is not None:
        arguments += ["--max-running-requests", str(max_batch)]
    if context_length is not None:
        arguments += ["--context-length", str(_context(model, context_length))]
    environment = {HEALTH_VARIABLE: "0", **variables(python)}
    if api_key:
        environment[KEY_VARIABLE] = api_key
    return EngineProcess(arguments + extra, environment)


_LAUNCH = f"""
import os, runpy, sys
sys.path[:] = [folder for folder in sys.path if folder]
key = os.environ.pop({KEY_VARIABLE!r}, "")
sys.argv += ["--api-key", key] if key else []
runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
"""
"""As `_main`, for an environment that has nothing of this package."""


def _context(model: Path, num_tokens: int) -> int:
    """Context length that SGLang must be given to serve `num_tokens` tokens in full."""
    longest = read_facts(model).max_context
    if longest is None:
        return num_tokens + SGLANG_SPARE_TOKENS
    if num_tokens > longest:
        raise UsageError(
            f"--context-length {num_tokens} is longer than the model's own ({longest} tokens)",
            remedy=f"give at most {longest}, or max_position_embeddings in {model}/config.json",
        )
    return min(num_tokens + SGLANG_SPARE_TOKENS, longest)


def check_port(port: int, host: str, engine: str) -> None:
    """Raises UsageError, ServiceError."""
    if port == 0:
        raise UsageError(
            "--port 0 (a free one) is for the CPU engine",
            remedy=f"give {engine} a port, such as 30000",
        )
    listen(host, port).close()


def has_gpu() -> bool:
    return any(Path(device).exists() for device in GPUS)


def _main() -> None:
    # Taken out, so that the processes that SGLang starts do not inherit it.
    key = os.environ.pop(KEY_VARIABLE, "")
    if key:
        sys.argv += ["--api-key", key]
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
