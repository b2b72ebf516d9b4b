"""The stages of `check_gpu`: each computes something on the device, and beside it by Hugging Face.

Invariant: a figure that tells a difference is from numbers that both sides computed for the same
tokens under the same weights. Imported by `check_gpu` alone, in a process for each stage.
"""

import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from bundled.model import make_bundled_model
from cli.bench import measure_plan
from cli.bench.measure_plan import MeasuredCase
from engine.model.served_model import ServedModel
from engine.scheduler import Scheduler
from engine.sequences import SamplingOptions
from engine.sequences import Sequence as Request
from mainspring.algorithms.choice import advantages_of
from mainspring.config.campaign import CampaignConfig
from mainspring.trajectories.samples import NOT_SAMPLED, Sample
from trainer.process.rank import TrainerRank

LENGTHS = (200, 73, 128, 31, 160, 90)
LR = 1e-3
NUM_REQUESTS = 16
GROUP_SIZE = 8
PROMPT_TOKENS = 64
REPLY_TOKENS = 64


def _config(engine: str, device: str, dtype: str, **trainer: Any) -> CampaignConfig:
    optimizer = {"lr": LR, "warmup_steps": 0, "final_lr_fraction": 1.0}
    fields = {"device": device, "engine": engine, "dtype": dtype, "gap": {"mode": "warn"}}
    fields |= {"micro_batch_tokens": 512, "warm_start": {}, "num_steps": 10}
    fields |= {"optimizer": optimizer}
    return CampaignConfig.model_validate({"name": "check", "trainer": fields | trainer})


def _dtype(device: str) -> str:
    return "bfloat16" if device == "cuda" else "float32"


def exactness(engine: str, device: str) -> dict[str, Any]:
    """A step on the device against Hugging Face's on the CPU, both from float32 weights: largest
    difference of log-probs, and those of loss, gradient norm, and weights after the step (in units
    of the learning rate; AdamW's first step is one everywhere)."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model")
        make_bundled_model(model, 0)
        samples = _samples(model, LENGTHS)
        found: dict[str, Any] = {"engine": engine}
        for dtype in ("float32",) if device == "cpu" else ("float32", "bfloat16"):
            if (engine, dtype) == ("plain", "bfloat16"):
                continue  # it computes in float32
            rank = TrainerRank(_config(engine, device, dtype), model)
            rows = rank.logprobs(samples)
            step = rank.train_step(samples, step=0, current_version=0)
            exported = Path(folder, dtype)
            rank.export_hf(exported)
            found[dtype] = _beside_hugging_face(model, samples, rows, step, exported)
    return found


def _beside_hugging_face(
    folder: Path, samples: Sequence[Sample], rows: Any, step: Any, exported: Path
) -> dict[str, float]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.0)
    num_tokens = sum(sample.num_action_tokens for sample in samples)
    gap, loss = 0.0, torch.zeros(())
    for number, sample in enumerate(samples):
        mask = torch.from_numpy(sample.action_mask[1:])
        logprobs = _logprobs(model, sample.token_ids)[mask]
        ours = torch.from_numpy(rows[number][1:])[mask]
        gap = max(gap, float((logprobs.detach() - ours).abs().max()))
        ratio = (logprobs - torch.from_numpy(sample.logprobs[1:])[mask]).exp()
        advantages = torch.from_numpy(sample.advantages[1:])[mask]
        clipped = ratio.clamp(0.8, 1.28) * advantages
        loss = loss - torch.min(ratio * advantages, clipped).sum() / num_tokens
    loss.backward()
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    optimizer.step()
    moved = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32).state_dict()
    differences = [
        float((weight - moved[name]).abs().max()) for name, weight in model.state_dict().items()
    ]
    return {
        "logprobs": gap,
        "loss": abs(float(loss.detach()) - step.loss),
        "grad_norm_relative": abs(norm - step.grad_norm) / norm,
        "weights_in_lr": max(differences) / LR,
    }


def _logprobs(model: Any, ids: Any) -> torch.Tensor:
    """[T - 1] of the tokens after the first one."""
    ids = torch.as_tensor(np.asarray(ids, np.int64))[None]
    logits = model(input_ids=ids).logits[0, :-1]
    return torch.log_softmax(logits.float(), -1).gather(1, ids[0, 1:, None])[:, 0]


def _samples(folder: Path, lengths: Sequence[int]) -> list[Sample]:
    """Log-probs are those of the model, a little off, as sampled by an engine that is older."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rng = np.random.default_rng(0)
    samples = []
    for number, length in enumerate(lengths):
        ids = rng.integers(0, model.config.vocab_size, length).astype(np.int32)
        mask = rng.random(length) < 0.5
        mask[0], mask[-1] = False, True
        with torch.no_grad():
            own = _logprobs(model, ids).numpy()
        near = np.concatenate([[0.0], own]) + 0.05 * rng.standard_normal(length)
        samples.append(_sample(number, ids, mask, near, float(rng.standard_normal())))
    return samples


def _sample(number: int, ids: Any, mask: Any, logprobs: Any, advantage: float) -> Sample:
    return Sample(
        rollout=f"r{number}",
        branch=0,
        token_ids=np.asarray(ids, np.int32),
        action_mask=mask,
        logprobs=np.where(mask, logprobs, 0).astype(np.float32),
        versions=np.where(mask, 0, NOT_SAMPLED).astype(np.int32),
        advantages=np.where(mask, advantage, 0).astype(np.float32),
    )


def speed(engine: str, device: str, model: Path | None) -> dict[str, Any]:
    """A step over two sequences of 32,768 tokens in bfloat16: see `measure_plan`."""
    if device == "cpu":
        return measure_plan.measure("small" if engine == "mcore" else "small-fsdp")
    name = f"gpu-{engine}-long"
    if model is not None:
        config = json.loads((model / "config.json").read_text())
        case = measure_plan.CASES[name]
        length = min(case.length, int(config["max_position_embeddings"]))
        measure_plan.CASES[name] = MeasuredCase(
            config, length, case.num_samples, case.micro_batch_tokens, case.trainer
        )
    return measure_plan.measure(name)


def serving(device: str, folder: Path | None) -> dict[str, Any]:
    """Tokens a second at 16 requests, and the largest gap of their log-probs to those that a
    trainer on the device computes for the same tokens."""
    with tempfile.TemporaryDirectory() as made:
        model = folder or Path(made, "model")
        if folder is None:
            make_bundled_model(model, 0)
        served = ServedModel(model, device=device)
        began = time.monotonic()
        replies = _replies(served, _prompts(served.vocab_size, NUM_REQUESTS, 1))
        wall_s = time.monotonic() - began
        gap = _gap(TrainerRank(_config("fsdp", device, _dtype(device)), model), replies)
    return {"tokens_per_s": round(NUM_REQUESTS * REPLY_TOKENS / wall_s, 1), "gap_max": gap}


def _prompts(vocab_size: int, num: int, size: int) -> list[list[int]]:
    """`num` of them, each `size` times."""
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, vocab_size, PROMPT_TOKENS).tolist() for _ in range(num)]
    return [prompt for prompt in prompts for _ in range(size)]


def _replies(model: ServedModel, prompts: Sequence[list[int]]) -> list[Request]:
    scheduler = Scheduler(model, weight_version="0", max_batch=len(prompts))
    requests = []
    for number, prompt in enumerate(prompts):
        wanted = {"max_new_tokens": REPLY_TOKENS, "ignore_eos": True, "sampling_seed": number}
        options = SamplingOptions.model_validate(wanted)
        requests.append(
            Request(
                rid=str(number),
                ids=list(prompt),
                options=options,
                stop_ids=frozenset(),
                prompt_tokens=len(prompt),
            )
        )
        scheduler.submit(requests[-1])
    while scheduler.busy:
        scheduler.step()
    return requests


def _gap(rank: TrainerRank, replies: Sequence[Request]) -> float:
    samples = [_of_reply(number, reply, 1.0) for number, reply in enumerate(replies)]
    rows = rank.logprobs(samples)
    return max(
        float(np.abs(rows[n] - sample.logprobs)[sample.action_mask].max())
        for n, sample in enumerate(samples)
    )


def _of_reply(number: int, reply: Request, advantage: float) -> Sample:
    mask = np.arange(len(reply.ids)) >= reply.prompt_tokens
    logprobs = np.zeros(len(reply.ids))
    logprobs[mask] = reply.logprobs
    return _sample(number, reply.ids, mask, logprobs, advantage)


def grpo_steps(device: str, num_steps: int = 6) -> dict[str, Any]:
    """Whole steps in this process: groups of replies, rewards, advantages, an update, and its
    weights in the engine. The reward is the share of even tokens, which has to rise."""
    rewards, gaps = [], []
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "v0")
        make_bundled_model(model, 0)
        config = _config("fsdp", device, _dtype(device), optimizer={"lr": 2e-2, "warmup_steps": 0})
        rank = TrainerRank(config, model)
        for step in range(num_steps):
            served = ServedModel(model, device=device)
            replies = _replies(served, _prompts(served.vocab_size, 4, GROUP_SIZE))
            gaps.append(_gap(rank, replies))
            scores = [float(np.mean([token % 2 == 0 for token in r.output_ids])) for r in replies]
            rewards.append(round(float(np.mean(scores)), 3))
            samples = []
            for first in range(0, len(replies), GROUP_SIZE):
                group = slice(first, first + GROUP_SIZE)
                given = advantages_of(scores[group], config.trainer)
                pairs = zip(replies[group], given, strict=True)
                samples += [
                    _of_reply(first + n, reply, advantage or 0.0)
                    for n, (reply, advantage) in enumerate(pairs)
                ]
            rank.train_step(samples, step=step, current_version=step)
            model = Path(folder, f"v{step + 1}")
            rank.export_hf(model)
    return {"mean_rewards": rewards, "gap_max": max(gaps)}
