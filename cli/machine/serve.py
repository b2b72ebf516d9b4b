"""`mainspring serve`: a policy engine, the CPU one in this process, or another in its place."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cli.options import Home
from cli.tables import Screen
from mainspring.artifacts import batch_invariance

LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Engine(StrEnum):
    CPU = "cpu"
    """The bundled engine, for small models."""
    SGLANG = "sglang"
    """SGLang, for GPUs."""
    VLLM = "vllm"
    """vLLM, for policy.api = "vllm"."""


app = typer.Typer()


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="With --engine sglang or vllm, further options go to that engine, such as --tp 4. "
    "MAINSPRING_POLICY_API_KEY sets --api-key as well.",
)
def serve(
    context: typer.Context,
    model: Annotated[Path, typer.Option(help="Hugging Face model directory.")],
    engine: Annotated[Engine, typer.Option(help="Engine that serves the model.")] = Engine.CPU,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Port to listen on (0: a free one, CPU engine only)."),
    ] = 30000,
    weight_version: Annotated[
        str, typer.Option(help="Policy version of the weights served first.")
    ] = "default",
    max_batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of requests generated at once. Default: as memory allows, up "
            "to 64; SGLang and vLLM choose their own.",
        ),
    ] = None,
    threads: Annotated[
        int, typer.Option(min=1, help="Number of CPU threads (CPU engine only).")
    ] = 1,
    step_interval_ms: Annotated[
        float, typer.Option(min=0, help="Minimum milliseconds between two steps (CPU engine only).")
    ] = 0.0,
    context_length: Annotated[
        int | None,
        typer.Option(min=2, help="Maximum tokens of prompt plus reply (default: the model's own)."),
    ] = None,
    api_key: Annotated[
        str,
        typer.Option(
            envvar="MAINSPRING_POLICY_API_KEY", show_envvar=False, help="Bearer token to require."
        ),
    ] = "",
    reproducible: Annotated[
        bool,
        typer.Option(
            "--reproducible",
            help="Replies whose bits do not depend on other requests, as schedule = "
            '"reproducible" needs them; slower (CPU engine only).',
        ),
    ] = False,
    home: Home = None,
) -> None:
    """Serve a policy over SGLang's native HTTP API, or vLLM's own, until interrupted."""
    from mainspring.config.section import BUNDLED, bundled_is_no_folder

    del home  # an engine keeps no state; scripts give every command the same options
    console = Screen(stderr=True)
    if str(model) == BUNDLED:
        raise bundled_is_no_folder("--model")
    if engine is Engine.VLLM and host not in LOOPBACK:
        console.print(
            f"warning: {host} is reachable from other machines, and no key guards the routes by "
            "which vLLM gets weights: it belongs into a private network",
            style="yellow",
        )
    elif host not in LOOPBACK and not api_key:
        console.print(
            f"warning: {host} is reachable from other machines and no --api-key is set: anyone "
            "who reaches it can replace the weights",
            style="yellow",
        )
    if engine is not Engine.CPU:
        if reproducible:
            raise typer.BadParameter("--reproducible is an option of the CPU engine")
        from infra.policy.engines.sglang_command import sglang_command
        from infra.policy.engines.vllm_command import vllm_command

        make = sglang_command if engine is Engine.SGLANG else vllm_command
        command = make(
            model=model,
            host=host,
            port=port,
            weight_version=weight_version,
            max_batch=max_batch,
            context_length=context_length,
            api_key=api_key,
            extra=context.args,
        )
        os.execve(command.arguments[0], command.arguments, command.environment)
    if context.args:
        raise typer.BadParameter(f"unknown arguments for the CPU engine: {context.args}")
    from infra.log_setup import set_up
    from infra.policy.model.model_files import check_servable
    from mainspring.config.settings import configured_settings
    from mainspring.model_folder.refusals import FolderUse

    set_up(configured_settings().log_format)
    check_servable(model, FolderUse.SERVED)  # before torch is imported, which takes seconds
    # Idle OpenMP threads must not spin: the machine is shared with sandboxes and a trainer.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    if reproducible:
        os.environ.update(batch_invariance.environment())
    from engine.server import EngineOptions, EngineServer

    server = EngineServer(
        EngineOptions(
            model=model,
            host=host,
            port=port,
            weight_version=weight_version,
            max_batch=max_batch,
            threads=threads,
            step_interval_s=step_interval_ms / 1000,
            context_length=context_length,
            api_key=api_key,
            reproducible=reproducible,
        )
    )
    console.print(
        f"up to {server.max_batch} requests at once, of {server.context_length} tokens each",
        soft_wrap=True,
    )
    console.print(f"serving {model} (version {weight_version}) at {server.url}", soft_wrap=True)
    server.serve()
