"""Steps of a reproducible campaign in a process of their own, on two threads.

    python -m tests.trainer.repeated_steps MODEL CHECKPOINT

Two warm-start steps and a step of two updates, a checkpoint, and a second step; one line of JSON
with SHA-256 of weights and gradients after each. Where the checkpoint is there, only the second
step.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

from mainspring.config.campaign import CampaignConfig
from mainspring.trajectories.samples import NOT_SAMPLED, Sample
from mainspring.trajectories.sequences import WeightedSequence
from trainer.process.rank import TrainerRank

THREADS = 2
CONFIG = {
    "name": "t",
    "schedule": "reproducible",
    "trainer": {
        "device": "cpu",
        "threads_per_rank": THREADS,
        "warm_start": {"threads_per_rank": THREADS},
        "num_steps": 4,
        "updates_per_step": 2,
        "gap": {"mode": "warn"},
        "optimizer": {"name": "muon", "lr": 5e-3, "warmup_steps": 0},
    },
}


def batch(seed: int) -> list[Sample]:
    rng = np.random.default_rng(seed)
    samples = []
    for n in range(5):
        mask = rng.random(int(rng.integers(40, 600))) < 0.5
        mask[0] = False
        logprobs = np.where(mask, -6 + 0.2 * rng.standard_normal(len(mask)), 0).astype(np.float32)
        advantages = np.where(mask, np.float32(rng.standard_normal()), np.float32(0))
        ids = rng.integers(3, 300, len(mask)).astype(np.int32)
        versions = np.where(mask, 0, NOT_SAMPLED).astype(np.int32)
        samples.append(Sample(f"r{n}", 0, ids, mask, logprobs, versions, advantages))
    return samples


def tell(name: str, rank: TrainerRank, gradient: str | None = None) -> None:
    found = hashlib.sha256()
    for each, weight in sorted(rank._weights.named().items()):
        found.update(each.encode() + weight.detach().contiguous().numpy().tobytes())
    print(json.dumps({"after": name, "weights": found.hexdigest(), "gradient": gradient}))
    sys.stdout.flush()


def main() -> None:
    model, checkpoint = Path(sys.argv[1]), Path(sys.argv[2])
    rank = TrainerRank(CampaignConfig.model_validate(CONFIG), model)
    if not checkpoint.exists():
        for n in range(2):
            rows = [
                WeightedSequence(s.token_ids, s.action_mask.astype(np.float32)) for s in batch(n)
            ]
            rank.supervised_step(rows, 1.0)
        tell("warm start", rank)
        metrics = rank.train_step(batch(7), step=0, current_version=0)
        tell("step 1", rank, metrics.gradient)
        checkpoint.mkdir()
        rank.save_checkpoint(checkpoint)
        tell("checkpoint", rank)
    else:
        rank.load_checkpoint(checkpoint)
    metrics = rank.train_step(batch(8), step=1, current_version=0)
    tell("step 2", rank, metrics.gradient)


if __name__ == "__main__":
    main()
