"""Whether the step engines, the policy engine and a whole step compute the right numbers on a GPU,
and how fast: one line of JSON for each stage.

    python -m cli.bench.ranks.check_gpu [STAGE ...] [--device cuda|cpu] [--model DIR]

A stage runs in a process of its own, so that one that fails or runs out of memory costs its own
line, and a run that is cut still told what came before. Needs torch, transformers and this
checkout; Ray, Megatron, a network and a store are not needed, and a stage that needs a package that
is not there names it. Invariant: what is right is what Hugging Face computes on the CPU in float32.
On the CPU sizes are small: that checks the script.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 150.0
"""One stage may take so long."""


@dataclass(frozen=True, slots=True)
class GpuCheck:
    device: str
    model: Path | None
    """A folder whose speed is measured; None: random weights of Qwen3-0.6B's shape."""

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"


Stage = Callable[[GpuCheck], dict[str, Any]]


def machine(asked: GpuCheck) -> dict[str, Any]:
    import torch
    import transformers

    found: dict[str, Any] = {"torch": torch.__version__, "transformers": transformers.__version__}
    for name in ("megatron", "sglang", "ray"):
        found[name] = importlib.util.find_spec(name) is not None
    if asked.on_gpu:
        card = torch.cuda.get_device_properties(0)
        found |= {"card": card.name, "memory_gib": round(card.total_memory / (1 << 30), 1)}
    return found


def _exact(engine: str) -> Stage:
    def stage(asked: GpuCheck) -> dict[str, Any]:
        from cli.bench.ranks.gpu_stages import exactness

        if engine != "fsdp" and importlib.util.find_spec("megatron") is None:
            return {"skipped": "megatron-core is not installed"}
        return exactness(engine, asked.device)

    return stage


def _speed(engine: str) -> Stage:
    def stage(asked: GpuCheck) -> dict[str, Any]:
        from cli.bench.ranks.gpu_stages import speed

        if engine != "fsdp" and importlib.util.find_spec("megatron") is None:
            return {"skipped": "megatron-core is not installed"}
        return speed(engine, asked.device, asked.model)

    return stage


def served(asked: GpuCheck) -> dict[str, Any]:
    from cli.bench.ranks.gpu_stages import serving

    return serving(asked.device, asked.model)


def whole_step(asked: GpuCheck) -> dict[str, Any]:
    from cli.bench.ranks.gpu_stages import grpo_steps

    return grpo_steps(asked.device)


STAGES: dict[str, Stage] = {
    "machine": machine,
    "exact-fsdp": _exact("fsdp"),
    "exact-plain": _exact("plain"),
    "exact-mcore": _exact("mcore"),
    "serving": served,
    "grpo-steps": whole_step,
    "speed-fsdp": _speed("fsdp"),
    "speed-mcore": _speed("mcore"),
}
"""In the order in which they tell most to a run that is cut."""


def run(name: str, asked: GpuCheck) -> dict[str, Any]:
    """The stage's line, whatever becomes of its process."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "cli.bench.ranks.check_gpu",
        name,
        "--in-process",
    ]
    command += ["--device", asked.device]
    if asked.model is not None:
        command += ["--model", str(asked.model)]
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as errors:
        try:
            ended = subprocess.run(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, timeout=TIMEOUT_S
            )
            figures = json.loads(ended.stdout.decode().splitlines()[-1])
        except subprocess.TimeoutExpired:
            figures = {"error": f"not done after {TIMEOUT_S:g} s"}
        except (IndexError, ValueError):
            errors.seek(0)
            lines = errors.read().strip().splitlines() or ["it printed nothing"]
            figures = {"error": lines[-1][-600:]}
    return {"stage": name, "wall_s": round(time.monotonic() - began, 1), **figures}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m cli.bench.ranks.check_gpu")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"of {', '.join(STAGES)}")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--model", type=Path, help="folder whose speed is measured")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if unknown := [name for name in given.stages if name not in STAGES]:
        parser.error(f"no stage is called {unknown[0]!r}: choose from {', '.join(STAGES)}")
    if given.model is not None and not (given.model / "config.json").exists():
        parser.error(f"--model {given.model} has no config.json: give a Hugging Face folder")
    asked = GpuCheck(given.device, given.model)
    if given.in_process:
        print(json.dumps(STAGES[given.stages[0]](asked)), flush=True)
        return 0
    if asked.on_gpu:
        import torch

        if not torch.cuda.is_available():
            parser.error(f"torch {torch.__version__} sees no GPU: --device cpu checks the script")
    is_whole = True
    for name in given.stages or STAGES:
        line = run(name, asked)
        is_whole = is_whole and "error" not in line
        print(json.dumps(line), flush=True)
    return 0 if is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
