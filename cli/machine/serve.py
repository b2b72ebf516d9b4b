"""`mainspring serve`: a policy engine, the CPU one in this process, or another in its place."""

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import Home
from cli.tables import Screen
from mainspring.artifacts import batch_invariance

if TYPE_CHECKING:
    from cli.operations.machine.kept_engine import EngineCommand

LOOPBACK = ("127.0.0.1", "localhost", "::1")
EVERYWHERE = ("0.0.0.0", "::")
DEVICES = ("cpu", "cuda", "auto")


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
    device: Annotated[
        str | None,
        typer.Option(
            help="Device that computes: cpu, cuda (the first GPU) or auto (CPU engine, default: "
            "cpu); SGLang and vLLM have names of their own."
        ),
    ] = None,
    reproducible: Annotated[
        bool,
        typer.Option(
            "--reproducible",
            help="Replies whose bits do not depend on other requests, as schedule = "
            '"reproducible" needs them; slower (CPU engine only).',
        ),
    ] = False,
    env: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the Python environment that has the engine (SGLang and vLLM; default: "
            "this one). `make install-gpu` makes one with SGLang."
        ),
    ] = None,
    campaign: Annotated[
        str, typer.Option(help="Name of the campaign to join: it sends this engine requests.")
    ] = "",
    name: Annotated[
        str,
        typer.Option(
            help="Name of the engine in the campaign, the same at each start (default: the "
            "machine's name)."
        ),
    ] = "",
    address: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Address under which the campaign's processes reach the engine (default: --host "
            "and --port).",
        ),
    ] = "",
    no_restart: Annotated[
        bool,
        typer.Option(
            "--no-restart", help="End with the engine. Default: start it again when it ends."
        ),
    ] = False,
    home: Home = None,
) -> None:
    """Serve a policy over SGLang's native HTTP API, or vLLM's own, until interrupted."""
    from cli.operations.machine.kept_engine import EngineCommand
    from mainspring.config.section import BUNDLED, bundled_is_no_folder
    from mainspring.errors import UsageError
    from mainspring.status import PolicyApi

    if (name or address) and not campaign:
        raise UsageError("--name and --address need --campaign", remedy="give the campaign to join")
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
            extra=[*(["--device", device] if device else []), *context.args],
            env=env,
        )
        if no_restart and not campaign:
            os.execve(command.arguments[0], command.arguments, command.environment)
        api = PolicyApi.VLLM if engine is Engine.VLLM else PolicyApi.SGLANG
        url = _local_url(host, port)
        kept = EngineCommand(command.arguments, command.environment, url, api_key, api)
        raise typer.Exit(_keep(kept, host, campaign, name, address, home))
    if device not in (None, *DEVICES):
        raise typer.BadParameter(f"--device {device}: expected one of {', '.join(DEVICES)}")
    if env is not None:
        raise typer.BadParameter("--env is an option of --engine sglang and vllm")
    if context.args:
        raise typer.BadParameter(f"unknown arguments for the CPU engine: {context.args}")
    from infra.log_setup import set_up
    from infra.policy.model.model_files import check_servable
    from mainspring.config.settings import configured_settings
    from mainspring.model_folder.refusals import FolderUse

    set_up(configured_settings().log_format)
    check_servable(model, FolderUse.SERVED)  # before torch is imported, which takes seconds
    if campaign or not no_restart:
        from infra.tcp import listen

        # Chosen here: an engine that is started again has the same address.
        free = listen(host, port)
        port = free.getsockname()[1]
        free.close()
        given = {
            "--model": model,
            "--host": host,
            "--port": port,
            "--weight-version": weight_version,
            "--max-batch": max_batch,
            "--threads": threads,
            "--step-interval-ms": step_interval_ms,
            "--context-length": context_length,
            "--device": device,
        }
        arguments = [sys.executable, "-m", "mainspring", "serve", "--no-restart"]
        for option, value in given.items():
            arguments += [] if value is None else [option, str(value)]
        arguments += ["--reproducible"] if reproducible else []
        environment = {**os.environ, "MAINSPRING_POLICY_API_KEY": api_key}
        kept = EngineCommand(arguments, environment, _local_url(host, port), api_key)
        raise typer.Exit(_keep(kept, host, campaign, name, address, home))
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
            device=device or "cpu",
            reproducible=reproducible,
        )
    )
    console.print(
        f"up to {server.max_batch} requests at once, of {server.context_length} tokens each, on "
        f"{server.device}",
        soft_wrap=True,
    )
    console.print(f"serving {model} (version {weight_version}) at {server.url}", soft_wrap=True)
    server.serve()


def _local_url(host: str, port: int) -> str:
    """Where this machine reaches what listens at `host`."""
    return f"http://{'127.0.0.1' if host in EVERYWHERE else host}:{port}"


def _keep(
    command: "EngineCommand",
    host: str,
    campaign: str,
    name: str,
    address: str,
    home: Path | None,
) -> int:
    """The exit code, when it is interrupted."""
    import asyncio
    import socket

    from cli.operations.machine import kept_engine
    from cli.operations.machine.kept_engine import KeptEngine
    from infra.db.runs.events import person

    console = Screen(stderr=True)

    def say(text: str) -> None:
        console.print(text, soft_wrap=True)

    if not campaign:
        return asyncio.run(KeptEngine(command, say).run())
    reached = command.url
    if host in EVERYWHERE:
        reached = reached.replace("127.0.0.1", socket.gethostname())
    return asyncio.run(
        kept_engine.run_in_campaign(
            command,
            campaign,
            name or socket.gethostname(),
            address.rstrip("/") or reached,
            person(),
            home,
            say,
        )
    )
