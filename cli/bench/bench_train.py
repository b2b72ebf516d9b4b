"""`mainspring bench train`: a step of the trainer beside the same step by Hugging Face and torch.

One model of random weights, one thread, CPU seconds: all sides take turns in one process, so the
load of the machine is the same for all. Hugging Face takes one sequence at a time, without padding
and with the logits of every token. Invariant: all compute the same loss, or nothing is reported.
"""

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from mainspring.config.training.parallel import FSDP, PLAIN

EQUAL = (512,) * 8
MIXED = (2048, 700, 512, 300, 256, 128, 96, 64)
VOCAB_SIZE = 32_768
ACTION_SHARE = 0.25
SAME_LOSS = 1e-4
"""Largest difference of the two losses before the first update."""


def measure(
    num_steps: int,
    say: Callable[[str], None],
    engine: str = PLAIN,
    beside: str | None = None,
) -> dict[str, Any]:
    """Measure each shape with the step engine `engine`: tokens per CPU second of both sides, their
    ratio; medians of num_steps steps. `beside`: another step engine that takes turns with them;
    its speed, and how many times as fast `engine` is. Seconds per GB of an export and of a
    checkpoint with its optimizer."""
    # Read when torch is imported: here, not before.
    os.environ |= {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="mainspring-bench-") as folder:
        model_dir = Path(folder, "model")
        say(f"making a model of {VOCAB_SIZE} tokens")
        reference = _make_model(model_dir)
        figures: dict[str, Any] = {}
        for name, lengths in (("equal_lengths", EQUAL), ("mixed_lengths", MIXED)):
            say(f"{name.replace('_', ' ')}: {num_steps} steps on each side")
            ranks = [_rank(model_dir, each) for each in (engine, beside) if each is not None]
            figures[name] = _shape(reference, ranks, lengths, num_steps)
        say("writing a checkpoint")
        figures["files"] = _files(model_dir, Path(folder), engine)
    figures |= {"engine": engine, "threads": 1, "num_steps": num_steps, "vocab_size": VOCAB_SIZE}
    return figures | ({} if beside is None else {"beside": beside})


def _make_model(directory: Path) -> Any:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    model = Qwen3ForCausalLM(config).float()
    model.set_attn_implementation("sdpa")
    model.save_pretrained(directory)
    return model


def _shape(
    reference: Any, ranks: Sequence[Any], lengths: Sequence[int], num_steps: int
) -> dict[str, float]:
    """`ranks`: that of the measured engine, and of the one beside it."""
    import copy

    import torch

    samples = _samples(lengths)
    model = copy.deepcopy(reference)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, betas=(0.9, 0.95), weight_decay=0.0)
    theirs_s: list[float] = []
    ours_s: list[list[float]] = [[] for _ in ranks]
    for step in range(num_steps + 1):  # the first one warms all sides up
        began = time.process_time()
        loss = _hugging_face_step(model, optimizer, samples)
        theirs_s.append(time.process_time() - began)
        # The first pays for memory that Hugging Face's step gave back, so each is first in turn.
        turns = list(zip(ranks, ours_s, strict=True))
        for rank, taken_s in turns if step % 2 else reversed(turns):
            began = time.process_time()
            measured = rank.train_step(samples, step=step, current_version=0)
            taken_s.append(time.process_time() - began)
            if not step and not abs(loss - measured.loss) < SAME_LOSS:
                raise AssertionError(f"the losses differ: {loss} and {measured.loss}")
    num_tokens = sum(lengths)
    hf_rate, rate, *others = (num_tokens / median(each[1:]) for each in (theirs_s, *ours_s))
    figures = {
        "tokens_per_s": round(rate, 1),
        "hf_tokens_per_s": round(hf_rate, 1),
        "ratio": round(rate / hf_rate, 3),
    }
    for other in others:
        figures |= {
            "beside_tokens_per_s": round(other, 1),
            "beside_ratio": round(rate / other, 3),
        }
    return figures


def _hugging_face_step(model: Any, optimizer: Any, samples: Sequence[Any]) -> float:
    import numpy as np
    import torch

    num_tokens = sum(sample.num_action_tokens for sample in samples)
    optimizer.zero_grad()
    total = 0.0
    for sample in samples:
        ids = torch.from_numpy(sample.token_ids.astype(np.int64))[None]
        mask = torch.from_numpy(sample.action_mask[1:])
        logprobs = torch.log_softmax(model(input_ids=ids).logits[0, :-1][mask], -1)
        logprobs = logprobs.gather(1, ids[0, 1:][mask][:, None])[:, 0]
        ratio = (logprobs - torch.from_numpy(sample.logprobs[1:])[mask]).exp()
        advantages = torch.from_numpy(sample.advantages[1:])[mask]
        objective = torch.min(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages)
        loss = -objective.sum() / num_tokens
        loss.backward()
        total += float(loss.detach())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return total


def _rank(model_dir: Path, engine: str) -> Any:
    from mainspring.config.campaign import CampaignConfig
    from trainer.process.rank import TrainerRank

    trainer = {
        "device": "cpu",
        "engine": engine,
        "micro_batch_tokens": 2048,
        "gap": {"mode": "warn"},
        "optimizer": {"warmup_steps": 0, "final_lr_fraction": 1.0},
    }
    policy = {"model": str(model_dir)}
    config = CampaignConfig.model_validate({"name": "bench", "policy": policy, "trainer": trainer})
    return TrainerRank(config, model_dir)


def _samples(lengths: Sequence[int]) -> list[Any]:
    import numpy as np

    from mainspring.trajectories.samples import NOT_SAMPLED, Sample

    rng = np.random.default_rng(0)
    samples = []
    for number, length in enumerate(lengths):
        mask = rng.random(length) < ACTION_SHARE
        mask[0], mask[-1] = False, True
        samples.append(
            Sample(
                rollout=f"r{number}",
                branch=0,
                token_ids=rng.integers(0, VOCAB_SIZE, length).astype(np.int32),
                action_mask=mask,
                logprobs=np.where(mask, -np.log(VOCAB_SIZE), 0).astype(np.float32),
                versions=np.where(mask, 0, NOT_SAMPLED).astype(np.int32),
                advantages=np.where(mask, rng.standard_normal(), 0).astype(np.float32),
            )
        )
    return samples


def _files(model_dir: Path, folder: Path, engine: str) -> dict[str, float]:
    rank = _rank(model_dir, engine)
    rank.train_step(_samples((64, 64)), step=0, current_version=0)  # an optimizer with state
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    saving, exporting = (
        _s_per_gb(write, checkpoint / part)
        for write, part in (
            (lambda _: rank.save_checkpoint(checkpoint), "." if engine == FSDP else "tp0.pt"),
            (rank.export_hf, "hf"),
        )
    )
    return {"checkpoint_s_per_gb": saving, "export_s_per_gb": exporting}


def _s_per_gb(write: Callable[[Path], None], path: Path) -> float:
    began = time.monotonic()
    write(path)
    wall_s = time.monotonic() - began
    files = [path] if path.is_file() else list(path.rglob("*"))
    return round(wall_s / (sum(file.stat().st_size for file in files) / 1e9), 2)
