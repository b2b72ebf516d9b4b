"""Planned and measured peak memory of trainer ranks, one line of JSON for each case.

    python -m cli.bench.measure_plan [CASE ...]

Each rank runs in a fresh process: it reads a model of random weights, made for the case, and takes
two steps of several micro-batches. Measured is the largest resident size of the process (VmHWM of
Linux: ru_maxrss of a child would begin with its parent's), on a GPU what torch has reserved there.
`ratio` is planned / measured, and `ratio_net` the same without what the process took before it had
a model. Without names, the cases on CPU are measured.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mainspring.config.campaign import CampaignConfig

QWEN3 = {
    "model_type": "qwen3",
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 32768,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
"""55 million parameters."""
LLAMA = QWEN3 | {
    "model_type": "llama",
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 9,
    "num_attention_heads": 12,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}
"""106 million parameters."""
WIDE = QWEN3 | {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 5}
"""89 million parameters."""
SMALL = QWEN3 | {"hidden_size": 384, "num_hidden_layers": 6, "vocab_size": 16384}
"""20 million parameters."""
TINY = SMALL | {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 1024}
"""Under a million parameters: what a rank takes without a model."""
QWEN2 = (
    LLAMA
    | {"model_type": "qwen2", "hidden_size": 640, "num_attention_heads": 10}
    | {"num_key_value_heads": 2, "intermediate_size": 1792, "vocab_size": 20000}
)
"""65 million parameters."""
QWEN3_600M = QWEN3 | {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
}
"""The sizes of Qwen3-0.6B: 596 million parameters."""


@dataclass(frozen=True, slots=True)
class MeasuredCase:
    model: dict[str, Any]
    length: int
    """Tokens of each sample."""
    num_samples: int
    micro_batch_tokens: int
    trainer: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> CampaignConfig:
        """The model has no tokenizer, so it stands for the bundled one, which has no adapters."""
        policy: dict[str, Any] = {"max_context": self.length, "max_new_tokens": 8}
        if "lora" in self.trainer:
            policy["model"] = "/model"
        trainer: dict[str, Any] = {
            "device": "cpu",
            "warm_start": None if "lora" in self.trainer else {},
            "num_steps": 10,
            "gap": {"mode": "warn"},
            "micro_batch_tokens": self.micro_batch_tokens,
        }
        return CampaignConfig.model_validate(
            {"name": "t", "policy": policy, "trainer": trainer | self.trainer}
        )

    @property
    def on_gpu(self) -> bool:
        return self.trainer.get("device") == "cuda"


CASES = {
    "tiny": MeasuredCase(TINY, length=64, num_samples=4, micro_batch_tokens=128),
    "small": MeasuredCase(SMALL, length=256, num_samples=4, micro_batch_tokens=512),
    "many-tokens": MeasuredCase(QWEN3, length=256, num_samples=8, micro_batch_tokens=1024),
    "many-weights": MeasuredCase(LLAMA, length=128, num_samples=8, micro_batch_tokens=384),
    "one-long-sequence": MeasuredCase(WIDE, length=1536, num_samples=2, micro_batch_tokens=1024),
    "untied-biases": MeasuredCase(QWEN2, length=200, num_samples=12, micro_batch_tokens=800),
    "data-parallel": MeasuredCase(
        LLAMA, length=64, num_samples=12, micro_batch_tokens=192, trainer={"data_parallel": 2}
    ),
    "tensor-parallel": MeasuredCase(
        QWEN3, length=256, num_samples=6, micro_batch_tokens=768, trainer={"tensor_parallel": 2}
    ),
    "tensor-and-data-parallel": MeasuredCase(
        WIDE,
        length=300,
        num_samples=8,
        micro_batch_tokens=600,
        trainer={"tensor_parallel": 2, "data_parallel": 2},
    ),
    "gpu-float32": MeasuredCase(
        QWEN3_600M,
        length=4096,
        num_samples=8,
        micro_batch_tokens=8192,
        trainer={"device": "cuda", "engine": "plain"},
    ),
    "gpu-bfloat16": MeasuredCase(
        QWEN3_600M,
        length=8192,
        num_samples=8,
        micro_batch_tokens=16384,
        trainer={"device": "cuda", "dtype": "bfloat16"},
    ),
    "small-fsdp": MeasuredCase(
        SMALL, length=256, num_samples=4, micro_batch_tokens=512, trainer={"engine": "fsdp"}
    ),
    **{
        f"{name}-{engine}": MeasuredCase(
            LLAMA,
            length=128,
            num_samples=8,
            micro_batch_tokens=384,
            trainer={"engine": engine, **more},
        )
        for name, more in (
            ("adapters", {"lora": {"rank": 16}}),
            ("critic", {"advantage": "gae", "filter": "none", "critic": {}}),
        )
        for engine in ("plain", "fsdp")
    },
    **{
        f"gpu-{engine}-long": MeasuredCase(
            QWEN3_600M,
            length=32768,
            num_samples=2,
            micro_batch_tokens=32768,
            trainer={"device": "cuda", "dtype": "bfloat16", "engine": engine, "recompute": "full"},
        )
        for engine in ("fsdp", "mcore")
    },
    "gpu-recompute": MeasuredCase(
        QWEN3_600M,
        length=8192,
        num_samples=8,
        micro_batch_tokens=16384,
        trainer={"device": "cuda", "dtype": "bfloat16", "recompute": "full"},
    ),
}
ACTION_SHARE = 0.25
TIMEOUT_S = 900


def measure(name: str) -> dict[str, Any]:
    """Planned and measured bytes of a case, of the rank with the largest peak."""
    from mainspring.planning.memory import (
        CPU_REST_BYTES,
        CUDA_REST_BYTES,
        largest_micro_batch,
        memory_of_ranks,
    )
    from mainspring.planning.model_shape import read_shape

    case = CASES[name]
    with tempfile.TemporaryDirectory(prefix="plan-") as folder:
        model = Path(folder) / "model"
        _run(["model", name, str(model)])
        ranks = _run_ranks(name, Path(folder), case.config.trainer.world_size)
        shape = read_shape(model)
    tokens = largest_micro_batch(case.config, ACTION_SHARE)
    [planned] = memory_of_ranks(case.config, shape, tokens, 2)
    largest = max(ranks, key=lambda rank: rank["peak_bytes"])
    peak, before = largest["peak_bytes"], largest["before_bytes"]
    rest = CUDA_REST_BYTES if case.on_gpu else CPU_REST_BYTES
    return {
        "case": name,
        "num_parameters": shape.num_parameters,
        "planned_bytes": planned.peak.num_bytes,
        "measured_bytes": peak,
        "ratio": round(planned.peak.num_bytes / peak, 3),
        "ratio_net": round((planned.peak.num_bytes - rest) / (peak - before), 3),
        "before_bytes": before,
        "moment": planned.peak.name.value,
        "parts": {part.value: size for part, size in planned.peak.bytes_of.items()},
        "step_s": largest["step_s"],
        "tokens_per_step": case.length * case.num_samples,
    }


def _run_ranks(name: str, folder: Path, world_size: int) -> list[dict[str, Any]]:
    started = [_start(["rank", name, str(folder), str(rank)]) for rank in range(world_size)]
    try:
        return [json.loads(_ended(process).splitlines()[-1]) for process in started]
    finally:
        for process in started:
            process.kill()


def _start(arguments: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", "-m", "cli.bench.measure_plan", *arguments]
    from trainer.process.rank_processes import rank_environment

    root = Path(__file__).parents[2]
    config = CASES[arguments[1]].config
    environment = os.environ | rank_environment(config) | {"PYTHONPATH": str(root)}
    return subprocess.Popen(
        command, cwd=root, env=environment, stdout=subprocess.PIPE, stderr=sys.stderr, text=True
    )


def _ended(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=TIMEOUT_S)
    if process.returncode:
        raise RuntimeError(f"{process.args} ended with {process.returncode}")
    return out


def _run(arguments: list[str]) -> None:
    _ended(_start(arguments))


def make_model(name: str, directory: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = dict(CASES[name].model)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields, dtype="float32")
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)


def run_rank(name: str, folder: Path, rank: int) -> None:
    from torch.distributed import FileStore  # pyright: ignore[reportPrivateImportUsage]

    import trainer.engines.plain
    from trainer.process.rank import TrainerRank

    case = CASES[name]
    world_size = case.config.trainer.world_size
    before = _peak_bytes(case)
    store = FileStore(str(folder / "store"), world_size) if world_size > 1 else None
    trainer = TrainerRank(case.config, folder / "model", rank=rank, store=store)
    imported, seconds = _peak_bytes(case), []
    for step in range(2):
        started = time.monotonic()
        trainer.train_step(_samples(case), step=step, current_version=0)
        seconds.append(round(time.monotonic() - started, 2))
    figures = {"before_bytes": before, "imported_bytes": imported}
    print(json.dumps(figures | {"peak_bytes": _peak_bytes(case), "step_s": seconds}))
    sys.stdout.flush()
    os._exit(0)  # gloo would wait for ranks that have ended


def _samples(case: MeasuredCase) -> list[Any]:
    import numpy as np

    from mainspring.trajectories.samples import NOT_SAMPLED, Sample

    rng = np.random.default_rng(0)
    samples = []
    for number in range(case.num_samples):
        mask = rng.random(case.length) < ACTION_SHARE
        mask[0], mask[-1] = False, True
        samples.append(
            Sample(
                rollout=f"r{number}",
                branch=0,
                token_ids=rng.integers(0, case.model["vocab_size"], case.length, dtype=np.int32),
                action_mask=mask,
                logprobs=np.where(mask, -10, 0).astype(np.float32),
                versions=np.where(mask, 0, NOT_SAMPLED).astype(np.int32),
                advantages=np.where(mask, (-1) ** number, 0).astype(np.float32),
                reward=None if case.config.trainer.critic is None else float(number % 2),
            )
        )
    return samples


def _peak_bytes(case: MeasuredCase) -> int:
    if case.on_gpu:
        import torch

        return torch.cuda.max_memory_reserved()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this kernel tells no VmHWM")


def main(arguments: list[str]) -> None:
    match arguments:
        case ["model", name, directory]:
            make_model(name, Path(directory))
        case ["rank", name, folder, rank]:
            run_rank(name, Path(folder), int(rank))
        case names:
            for name in names or (name for name, case in CASES.items() if not case.on_gpu):
                print(json.dumps(measure(name)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
