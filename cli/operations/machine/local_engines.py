"""Engines, of the policy and of judges, that `mainspring train` starts here where none answers.

Invariants: an engine that answers is used as it is; only addresses of this machine get an engine
started; what is started, and why, is said before it is; nothing falls back from a GPU to the CPU
without being told. Pure decisions here, the processes are `cli.operations.machine.fleet`'s.
"""

import asyncio
import json
import math
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil

from cli.operations.machine.fleet import ONE_THREAD, Member
from infra.db import leases
from infra.db.connect import open_database
from infra.db.leases import LeaseLost, ProcessLease
from infra.policy.engines.dialects.sglang import MEMORY_SAVER
from infra.policy.engines.engine_check import adapter_arguments
from infra.policy.engines.engine_environment import has_module, python_of
from infra.policy.model.model_files import read_facts
from mainspring.algorithms.schedule import Schedule
from mainspring.artifacts import batch_invariance, layout
from mainspring.config.campaign import CampaignConfig
from mainspring.config.section import BUNDLED
from mainspring.config.settings import Settings, configured_settings
from mainspring.config.training.parallel import Device
from mainspring.errors import DatabaseError
from mainspring.ids import campaign_id
from mainspring.model_folder.any_model import estimated_sizes
from mainspring.status import PolicyApi, Publish

HERE = ("127.0.0.1", "localhost", "::1")
ANSWER_TIMEOUT_S = 10.0
LOOK_S = 1.0
"""Between two tries to reach the store."""
STEP_INTERVAL_MS = "50"
"""On two cores replies that share a step cost a fraction; a reply takes two seconds. Bundled model
only: a step of a larger one takes longer than this anyway."""
MAX_CPU_BYTES = 8 << 30
"""Larger models give less than a token a second on a CPU."""
MAX_BATCH = 64
SLOTS_PER_RUNNING = 2
"""KV caches of the CPU engine for each request at once, as its scheduler has it (not imported: it
brings torch)."""
SHARED_GPU_FRACTION = "0.35"
"""Share of a GPU's memory that SGLang may take where the trainer needs the same GPU."""
TURN_GPU_FRACTION = "0.8"
"""The same where ranks and engine have the GPU in turns: ranks keep their CUDA context."""
FIRST_VERSION = "base"
"""Not a policy version: the first request brings the engine up to date."""


class EngineKind(StrEnum):
    CPU = "cpu"
    """`mainspring serve`, for small models."""
    SGLANG = "sglang"
    """`mainspring serve --engine sglang`, on GPUs of this machine."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """Parts of this machine that decide which engine is started."""

    gpus: tuple[str, ...]
    """Indices or ids of the GPUs that this process may use."""
    has_sglang: bool
    """Installed in this environment, or in the one that MAINSPRING_SGLANG_ENV names."""
    free_memory_bytes: int
    cores: int


def this_machine() -> Hardware:
    """Raises UsageError where MAINSPRING_SGLANG_ENV names no environment."""
    env = configured_settings().sglang_env
    return Hardware(
        visible_gpus(),
        has_module(python_of(Path(env) if env else None), "sglang"),
        psutil.virtual_memory().available,
        os.cpu_count() or 1,
    )


def visible_gpus() -> tuple[str, ...]:
    """As CUDA_VISIBLE_DEVICES narrows them; none where there is no NVIDIA driver."""
    if shutil.which("nvidia-smi") is None:
        return ()
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    devices = tuple(output.stdout.split()) if output.returncode == 0 else ()
    narrowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if narrowed is None or not devices:
        return devices
    return tuple(device for device in narrowed.split(",") if device not in ("", "-1"))


def kind_for(config: CampaignConfig, hardware: Hardware) -> EngineKind:
    if config.policy.model == BUNDLED:  # its shapes are too small for SGLang's kernels
        return EngineKind.CPU
    if config.schedule is Schedule.REPRODUCIBLE:  # which SGLang is not
        return EngineKind.CPU
    return EngineKind.SGLANG if hardware.gpus and hardware.has_sglang else EngineKind.CPU


def is_here(url: str) -> bool:
    return urlsplit(url).hostname in HERE


async def answering(engines: Sequence[str]) -> set[str]:
    """Those where an HTTP server answers now, of whatever kind."""
    reached: set[str] = set()
    async with httpx.AsyncClient(timeout=ANSWER_TIMEOUT_S) as http:
        for url in engines:
            try:
                await http.get(url + "/model_info")
            except httpx.HTTPError:
                continue
            reached.add(url)
    return reached


def engine_members(
    settings: Settings, config: CampaignConfig, urls: Sequence[str], hardware: Hardware
) -> list[Member]:
    """A process for each of `urls`, all of them addresses of this machine."""
    kind = kind_for(config, hardware)
    make = _sglang if kind is EngineKind.SGLANG else _cpu
    members: list[Member] = []
    for number, url in enumerate(urls):
        name = "engine" if number == 0 else f"engine-{number + 1}"
        member = make(name, settings, config, url, hardware)
        if config.trainer.colocate:
            member = _on_shared_devices(member, settings, config, url)
        members.append(member)
    return members


def judge_engines(config: CampaignConfig) -> list[tuple[str, str]]:
    """Name and URL of each engine of a judge."""
    return [(name, url) for name, judge in config.judges.items() for url in judge.engines]


def judge_members(
    settings: Settings, config: CampaignConfig, urls: Sequence[str], hardware: Hardware
) -> list[Member]:
    """A process for each of `urls`, addresses of this machine of engines of judges."""
    members = []
    for name, url in judge_engines(config):
        if url not in urls:
            continue
        number = len(members) + 1
        process = "judge" if number == 1 else f"judge-{number}"
        judge = as_policy(config, name)
        if kind_for(judge, hardware) is EngineKind.CPU:
            members.append(_cpu(process, settings, judge, url, hardware))
            continue
        member = _sglang(process, settings, judge, url, hardware)
        rest = hardware.gpus[len(gpus_of_trainer(config, hardware)) :] or hardware.gpus[:1]
        # After those of the policy's engines, as far as there are more.
        gpu = rest[(len(config.policy.engines) + number - 1) % len(rest)]
        member.environment["CUDA_VISIBLE_DEVICES"] = gpu
        members.append(member)
    return members


def as_policy(config: CampaignConfig, judge: str) -> CampaignConfig:
    """The campaign with the model of a judge in the place of the policy's: how it is served."""
    model = config.judges[judge].model
    facts = read_facts(Path(model))
    length = {} if facts.max_context is None else {"max_context": facts.max_context}
    policy = config.policy.model_copy(
        update={"model": model, "publish": Publish.DISK, "api": PolicyApi.SGLANG, **length}
    )
    return config.model_copy(update={"policy": policy})


def served_first(settings: Settings, config: CampaignConfig) -> Path:
    """The model directory that an engine serves before it is given a policy version."""
    if config.policy.model == BUNDLED:
        return layout.base_model(settings.home, campaign_id(config.name))
    return Path(config.policy.model)


def gpus_of_trainer(config: CampaignConfig, hardware: Hardware) -> tuple[str, ...]:
    if config.trainer.device is not Device.CUDA:
        return ()
    world_size = config.trainer.world_size
    return hardware.gpus[:world_size]


def _on_shared_devices(
    member: Member, settings: Settings, config: CampaignConfig, url: str
) -> Member:
    """It is not started while ranks have the devices, and ranks do not get them before it answers:
    from then on the trainer can have it give its memory away."""
    name = leases.publishing(campaign_id(config.name))

    @asynccontextmanager
    async def turn() -> AsyncIterator[None]:
        async with open_database(settings, pool_size=1) as db:
            lease = ProcessLease(db, name, wait_s=math.inf)
            async with AsyncExitStack() as held:
                while True:
                    with suppress(DatabaseError):  # it is started again beside this
                        await held.enter_async_context(lease.held())
                        break
                    await asyncio.sleep(LOOK_S)
                with suppress(LeaseLost):
                    yield

    async def answers() -> bool:
        return url in await answering([url])

    member.turn, member.answers = turn, answers
    return member


def _sglang(
    name: str, settings: Settings, config: CampaignConfig, url: str, hardware: Hardware
) -> Member:
    member = _serve(name, settings, config, url)
    rest = hardware.gpus[len(gpus_of_trainer(config, hardware)) :]
    # SGLang keeps two tokens of its context for itself.
    length = config.policy.max_context + 2
    if config.policy.model != BUNDLED:
        length = min(length, read_facts(Path(config.policy.model)).max_context or length)
    member.arguments += ["--engine", "sglang", "--context-length", str(length)]
    if settings.sglang_env:
        member.arguments += ["--env", settings.sglang_env]
    if config.adapter_rank:
        member.arguments += adapter_arguments(config.adapter_rank)
    if config.trainer.colocate:
        # In turns: the engine may have what the ranks leave, which is all but their contexts.
        member.arguments += [MEMORY_SAVER, "--mem-fraction-static", TURN_GPU_FRACTION]
        rest = gpus_of_trainer(config, hardware) or hardware.gpus
    elif not rest:
        member.arguments += ["--mem-fraction-static", SHARED_GPU_FRACTION]
        rest = hardware.gpus[:1]
    number = int(name.partition("-")[2] or 1) - 1
    member.environment = {"CUDA_VISIBLE_DEVICES": rest[number % len(rest)]}
    return member


def _cpu(
    name: str, settings: Settings, config: CampaignConfig, url: str, hardware: Hardware
) -> Member:
    member = _serve(name, settings, config, url)
    member.environment = dict(ONE_THREAD)
    if config.schedule is Schedule.REPRODUCIBLE:
        member.arguments.append("--reproducible")
        member.environment |= batch_invariance.environment()
    if config.policy.model == BUNDLED:
        member.arguments += ["--step-interval-ms", STEP_INTERVAL_MS]
        # With one compute thread alone: a pool of them would not outlive a fork.
        member.imports = ("engine.server",)
        return member
    threads = max(1, hardware.cores // 2)
    member.environment["OMP_NUM_THREADS"] = str(threads)
    member.arguments += ["--threads", str(threads)]
    member.arguments += ["--context-length", str(config.policy.max_context)]
    batch = batch_that_fits(Path(config.policy.model), config, hardware.free_memory_bytes)
    member.arguments += ["--max-batch", str(batch)]
    return member


def _serve(name: str, settings: Settings, config: CampaignConfig, url: str) -> Member:
    first, address = served_first(settings, config), urlsplit(url)
    host, port = address.hostname or HERE[0], address.port or 80
    return Member(
        name,
        [
            *("serve", "--no-restart"),
            *("--model", str(first), "--host", host, "--port", str(port)),
            *("--weight-version", FIRST_VERSION),
        ],
        waits_for=first / "config.json",
        is_asked=True,
    )


def hf_config(model: Path) -> dict[str, Any]:
    return json.loads((model / "config.json").read_text())


def batch_that_fits(model: Path, config: CampaignConfig, free_bytes: int) -> int:
    """Requests at once whose KV cache takes at most half of the free memory on CPU."""
    sizes = estimated_sizes(hf_config(model), str(model))
    per_token = 2 * sizes["num_layers"] * sizes["num_kv_heads"] * sizes["head_dim"] * 4
    per_request = SLOTS_PER_RUNNING * per_token * config.policy.max_context
    return max(1, min(MAX_BATCH, free_bytes // 2 // per_request))
