"""Assumptions of a plan, as no file tells them: averages of rollouts, and speeds of machines.

Each has a name, a unit and a source; a command's option replaces it. Invariant: none is used
without being printed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mainspring.config.campaign import CampaignConfig
from mainspring.config.training.parallel import Device
from mainspring.planning.engine_facts import bytes_per_value
from mainspring.planning.gpu_peaks import GPU_TFLOPS, known_gpu
from mainspring.planning.model_shape import ModelShape

ACTION_SHARE = 0.25
"""Share of a rollout's tokens that the policy generates; the rest is prompts and observations."""
COMMAND_S = 3.0
DISK_GB_PER_S = 1.0
MFU = 0.35
"""Share of the GPUs' peak; long sequences and tensor parallelism over a slow link reach less."""
FLOAT32_MFU = 0.6
DECODE_PARAMETERS_PER_S = 16_000_000_000_000
"""Tokens a second of one GPU engine, times active parameters: 2,000 tokens/s of an 8B model."""
CPU_FLOPS_PER_THREAD = 60_000_000_000
"""Speed of a training step in one thread, 20 to 106 million parameters: 60 to 80 measured on a
machine of docs/performance.md with other work on it (cli/bench/measure_plan.py)."""
CPU_DECODE_SHARE = 0.2
"""Share of those operations that decoding reaches on a CPU; assumed, not measured."""
CPU_DECODE_TOKENS_PER_S = 400
"""The CPU engine's own work bounds small models; assumed, not measured."""

USUAL_GPU = "H100"


@dataclass(frozen=True, slots=True)
class Given:
    """Options of the command; None: assumed."""

    tokens_per_rollout: int | None = None
    turns_per_rollout: int | None = None
    action_share: float | None = None
    command_s: float | None = None
    gpu_tflops: float | None = None
    mfu: float | None = None
    decode_tokens_per_s: float | None = None
    disk_gb_per_s: float | None = None
    gpu_name: str | None = None
    """Name of the GPUs seen on this machine."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    tokens_per_rollout: int
    turns_per_rollout: int
    action_share: float
    command_s: float
    peak_flops_per_rank: float
    mfu: float
    """1 on a CPU, where the peak is a measured speed."""
    decode_tokens_per_s: float
    """Speed of one engine."""
    disk_bytes_per_s: int
    source: Mapping[str, str]
    """Origin of each field: "given", or where it comes from."""


def assumptions_of(config: CampaignConfig, shape: ModelShape, given: Given) -> Assumptions:
    on_cpu = config.trainer.device is Device.CPU
    source: dict[str, str] = {}

    def take(name: str, value: float | None, usual: float, why: str) -> float:
        source[name] = "given" if value is not None else why
        return usual if value is None else value

    length = config.policy.max_context // 2
    turns = max(1, config.agent.step_limit // 2)
    peak, peak_source = _peak(config, given)
    source["peak_flops_per_rank"] = peak_source
    decode, decode_source = _decode(config, shape)
    return Assumptions(
        tokens_per_rollout=int(
            take("tokens_per_rollout", given.tokens_per_rollout, length, "half of max_context")
        ),
        turns_per_rollout=int(
            take("turns_per_rollout", given.turns_per_rollout, turns, "half of step_limit")
        ),
        action_share=take("action_share", given.action_share, ACTION_SHARE, "usual"),
        command_s=take("command_s", given.command_s, COMMAND_S, "usual"),
        peak_flops_per_rank=peak,
        mfu=1.0
        if on_cpu
        else take(
            "mfu", given.mfu, MFU if bytes_per_value(config.trainer) == 2 else FLOAT32_MFU, "usual"
        ),
        decode_tokens_per_s=take(
            "decode_tokens_per_s", given.decode_tokens_per_s, decode, decode_source
        ),
        disk_bytes_per_s=round(
            1e9
            * take(
                "disk_bytes_per_s",
                given.disk_gb_per_s,
                DISK_GB_PER_S,
                "one local disk or a shared folder",
            )
        ),
        source=source,
    )


def _peak(config: CampaignConfig, given: Given) -> tuple[float, str]:
    trainer = config.trainer
    if trainer.device is Device.CPU:
        threads = trainer.threads_per_rank
        return threads * float(CPU_FLOPS_PER_THREAD), "measured, of one thread"
    if given.gpu_tflops is not None:
        return given.gpu_tflops * 1e12, "given"
    seen = known_gpu(given.gpu_name) if given.gpu_name else None
    name = seen or USUAL_GPU
    half, single = GPU_TFLOPS[name]
    peak = half if bytes_per_value(trainer) == 2 else single
    kind = "bfloat16" if bytes_per_value(trainer) == 2 else "float32"
    return peak * 1e12, f"{name}, {kind}" + ("" if seen else ", assumed")


def _decode(config: CampaignConfig, shape: ModelShape) -> tuple[float, str]:
    active = shape.num_active_parameters + shape.embedding_parameters
    if config.trainer.device is Device.CPU:
        computed = CPU_DECODE_SHARE * CPU_FLOPS_PER_THREAD / (2 * active)
        return min(computed, CPU_DECODE_TOKENS_PER_S), "the CPU engine, assumed"
    return DECODE_PARAMETERS_PER_S / active, "16e12 / active parameters"
