"""The log-prob gap in bfloat16, on CPU: what Hugging Face serves in bfloat16 against what the mcore
engine computes in bfloat16 from the same files, under the tests' shim.

    python -m tests.trainer.measure_bf16_gap MODEL_DIR [--num-samples 8] [--num-tokens 256]

MODEL_DIR: a Hugging Face folder. Replies are sampled token by token from Hugging Face at
temperature 1. Prints one line of JSON: quantiles of |served - recomputed|, KL(served || recomputed)
by k3, and of one step without a correction, with TIS and with IcePop the loss, the gradient's norm
and the share of tokens that the correction cut.
"""

import argparse
import json
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mainspring.algorithms.gap import measure
from mainspring.config.campaign import CampaignConfig
from mainspring.trajectories.samples import NOT_SAMPLED, Sample
from tests.trainer import rank_jobs
from tests.trainer.ranks import run

CORRECTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "tis": {"correction": {"kind": "tis"}, "proximal": "recomputed"},
    "icepop": {"correction": {"kind": "icepop"}, "proximal": "recomputed"},
}


def config_of(model_dir: Path, dtype: str, **trainer: Any) -> CampaignConfig:
    return CampaignConfig.model_validate(
        {
            "name": "gap",
            "policy": {"model": str(model_dir), "dtype": dtype},
            "trainer": {
                "device": "cpu",
                "engine": "mcore",
                "dtype": dtype,
                "gap": {"mode": "warn"},
                "optimizer": {"lr": 1e-6, "warmup_steps": 0},
                **trainer,
            },
        }
    )


@torch.no_grad()
def served(model_dir: Path, num_samples: int, num_tokens: int) -> list[Sample]:
    """Sampled in a batch with a cache, as an engine does it: log-probs are those of decoding."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16)
    prompt = torch.randint(100, model.config.vocab_size // 2, (num_samples, 16))
    ids, cache, logprobs = prompt, None, []
    now = prompt
    for _ in range(num_tokens):
        out = model(input_ids=now, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = out.past_key_values
        found = torch.log_softmax(out.logits[:, -1].float(), -1)
        now = torch.multinomial(found.exp(), 1)
        logprobs.append(found.gather(1, now))
        ids = torch.cat([ids, now], 1)
    sampled = torch.cat(logprobs, 1)
    samples = []
    for n in range(num_samples):
        mask = np.arange(ids.shape[1]) >= prompt.shape[1]
        padded = np.concatenate([np.zeros(prompt.shape[1], np.float32), sampled[n].numpy()])
        samples.append(
            Sample(
                rollout=f"r{n}",
                branch=0,
                token_ids=ids[n].numpy().astype(np.int32),
                action_mask=mask,
                logprobs=padded,
                versions=np.where(mask, 0, NOT_SAMPLED).astype(np.int32),
                advantages=np.where(mask, np.float32(1 - 2 * (n % 2)), np.float32(0)),
            )
        )
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--num-samples", type=int, default=8)
    parser.add_argument("--num-tokens", type=int, default=256)
    given = parser.parse_args()
    samples = served(given.model_dir, given.num_samples, given.num_tokens)
    found: dict[str, Any] = {"num_tokens": given.num_samples * given.num_tokens}
    for dtype in ("bfloat16", "float32"):
        config = config_of(given.model_dir, dtype)
        [recomputed] = run(1, rank_jobs.logprobs, config, given.model_dir, samples)
        gap = measure(
            np.concatenate(
                [(recomputed[n] - s.logprobs)[s.action_mask] for n, s in enumerate(samples)]
            )
        )
        found[f"trainer in {dtype}"] = {
            name: round(value, 5)
            for name in ("max", "mean", "p999", "k3")
            if (value := getattr(gap, name)) is not None
        }
    for name, fields in CORRECTIONS.items():
        config = config_of(given.model_dir, "bfloat16", **fields)
        [step] = run(1, rank_jobs.one_step, config, given.model_dir, samples)
        found[f"step, correction {name}"] = {
            "loss": step.loss,
            "grad_norm": step.grad_norm,
            "correction_cut": step.values.get("correction_cut"),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    multiprocessing.freeze_support()
    main()
