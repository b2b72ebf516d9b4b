"""Makes a tiny model of another family that solves some of the bundled tasks, for a campaign.

    python -m tests.trainer.warm_started KIND DIR [--steps 240]

Sizes, tokenizer and supervised steps are those of the bundled model; layers are KIND's, a
`model_type` of transformers, trained by the engine `fsdp`. A campaign with policy.model = "DIR" and
the bundled tasks starts from it.
"""

import argparse
import time
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bundled.forms import BUNDLED_AGENT, taught_agent
from bundled.model import make_tokenizer
from bundled.served_text import ServedText
from bundled.shape import SIZES
from bundled.trajectories import Writer
from mainspring.config.campaign import CampaignConfig
from trainer.process.rank import TrainerRank
from trainer.process.warm_start import batch_of

LAYERS = {
    "qwen3_5_text": {
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "layer_types": ["linear_attention", "full_attention"] * 2,
    },
}
"""Fields that a family has beside the bundled model's."""
REPORT_EVERY = 20


def make(kind: str, directory: Path, seed: int, num_steps: int) -> CampaignConfig:
    """Random weights in `directory`; gives the configuration that trains them."""
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(directory)
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    fields = {**SIZES, **LAYERS.get(kind, {}), **ends, "vocab_size": len(tokenizer)}
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **fields, bos_token_id=None, dtype="float32")
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    warm = {"copy_steps": 60, "copy_batch_size": 32, "steps": num_steps, "batch_size": 8}
    trainer = {"device": "cpu", "engine": "fsdp", "threads_per_rank": 2, "warm_start": warm}
    return CampaignConfig.model_validate({"name": "warm", "trainer": trainer})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.trainer.warm_started")
    parser.add_argument("kind")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    base = given.directory.with_name(f"{given.directory.name}-random")
    config = make(given.kind, base, given.seed, given.steps)
    warm = config.trainer.warm_start
    assert warm is not None
    tokenizer = make_tokenizer()
    writer = Writer(taught_agent(BUNDLED_AGENT), config.policy, ServedText(tokenizer))
    rank = TrainerRank(config, base)
    began = time.monotonic()
    for step in range(warm.copy_steps + warm.steps):
        batch, scale = batch_of(given.seed, step, warm, tokenizer, writer)
        loss = rank.supervised_step(batch, scale)
        if step % REPORT_EVERY == 0:
            print(f"step {step}, loss {loss:.2f}, {time.monotonic() - began:.0f} s", flush=True)
    rank.export_hf(given.directory)


if __name__ == "__main__":
    main()
