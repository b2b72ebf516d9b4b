"""Compare the gradients and weights of two source trees, bit for bit, on the same batches.

    python cli/bench/ranks/compare_gradients.py TREE OTHER_TREE

Each tree's trainer runs in a process of its own, on one CPU thread: the bundled model from a
fixed seed, a stored batch, several settings, two steps. Prints JSON: for each setting whether the
figures, every weight's gradient and every weight after each step are equal in all bits. Exit code 0
when everything is, else 1. Of a tree's rank only `TrainerRank(config, model directory)`,
`train_step(samples, step=, current_version=)` and `save_checkpoint` are used.
"""

import argparse
import hashlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

NUM_STEPS = 2
FIGURES = ("loss", "grad_norm", "entropy", "ratio_mean", "clip_fraction", "kl", "kl_k1")
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "small micro-batches": {"micro_batch_tokens": 64},
    "entropy bonus": {"entropy_coef": 0.01, "aggregation": "seq_mean_token_mean"},
    "token sums, narrow clip": {
        "aggregation": "seq_mean_token_sum",
        "clip_low": 0.01,
        "clip_high": 0.02,
    },
    "two updates": {"updates_per_step": 2},
    "muon": {"optimizer": {"name": "muon"}},
}


def make(model: Path, batch: Path) -> None:
    """The bundled model; twelve samples of unequal lengths, two without advantage, as arrays that
    any tree can read."""
    import numpy as np

    from bundled.model import make_bundled_model

    make_bundled_model(model, seed=0)
    vocab_size = json.loads((model / "config.json").read_text())["vocab_size"]

    rng = np.random.default_rng(7)
    samples = {}
    for n in range(12):
        length = int(rng.integers(9, 40))
        mask = rng.random(length) < 0.6
        mask[0], mask[-1] = False, True
        logprobs = np.where(mask, -np.log(vocab_size) + 0.2 * rng.standard_normal(length), 0)
        samples[f"{n}/token_ids"] = rng.integers(0, vocab_size, length).astype(np.int32)
        samples[f"{n}/action_mask"] = mask
        samples[f"{n}/logprobs"] = logprobs.astype(np.float32)
        samples[f"{n}/versions"] = np.where(mask, n % 2, -1).astype(np.int32)
        samples[f"{n}/advantage"] = np.float64(0.0 if n in (3, 8) else rng.standard_normal())
    np.savez(batch, **samples)


def run(model: Path, batch: Path) -> dict[str, Any]:
    """In a tree's own process: digests and figures of every setting and step."""
    import numpy as np
    import torch

    from mainspring.config.campaign import CampaignConfig
    from mainspring.trajectories.samples import Sample

    optimizers = module("trainer.engines.optimizer", "trainer.optimizer")
    ranks = module("trainer.process.rank", "trainer.rank")

    gradients: list[str] = []
    reduce_and_clip = optimizers.PolicyOptimizer.reduce_and_clip

    def noted(self: Any) -> float:
        # Private on purpose: what the backward pass left, before it is clipped.
        gradients.append(digest({n: p.grad for n, p in self._model.named_parameters()}))
        return reduce_and_clip(self)

    def digest(tensors: dict[str, Any]) -> str:
        sha256 = hashlib.sha256()
        for name in sorted(tensors):
            sha256.update(name.encode() + tensors[name].detach().contiguous().numpy().tobytes())
        return sha256.hexdigest()

    optimizers.PolicyOptimizer.reduce_and_clip = noted
    source = Path(str(optimizers.__file__)).resolve()
    assert source.is_relative_to(Path.cwd()), f"{source} is not of the tree {Path.cwd()}"
    arrays = np.load(batch)
    samples = []
    for n in range(len({name.partition("/")[0] for name in arrays})):
        parts = {key: arrays[f"{n}/{key}"] for key in ("token_ids", "action_mask", "logprobs")}
        parts |= {"versions": arrays[f"{n}/versions"], "rollout": f"r{n}"}
        advantage = float(arrays[f"{n}/advantage"])
        if "advantages" in Sample.__dataclass_fields__:
            mask = parts["action_mask"]
            parts["advantages"] = np.where(mask, advantage, 0).astype(np.float32)
            parts["branch"] = 0
        else:
            parts["advantage"] = advantage
        samples.append(Sample(**parts))
    results: dict[str, Any] = {}
    for name, fields in SETTINGS.items():
        optimizer = {"lr": 5e-3, "warmup_steps": 0, "max_grad_norm": 0.5}
        optimizer |= fields.get("optimizer", {})
        section = {"warm_start": {}, "num_steps": 10, "gap": {"mode": "warn"}, "device": "cpu"}
        section |= fields | {"optimizer": optimizer}
        config = CampaignConfig.model_validate({"name": "t", "trainer": section})
        rank = ranks.TrainerRank(config, model)
        gradients.clear()
        steps = []
        for step in range(NUM_STEPS):
            measured = asdict(rank.train_step(samples, step=step, current_version=0))
            measured |= measured.pop("values", {})
            with tempfile.TemporaryDirectory() as folder:
                rank.save_checkpoint(Path(folder))
                [file] = Path(folder).iterdir()
                saved = torch.load(file, weights_only=True)
            figures = {figure: measured[figure] for figure in FIGURES}
            steps.append({"weights": digest(saved["model"]), "figures": figures})
        results[name] = {"gradients": list(gradients), "steps": steps}
    return results


def module(*names: str) -> Any:
    """The first that the tree has: earlier trees have it elsewhere."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError(f"the tree {Path.cwd()} has none of {', '.join(names)}")


def call(tree: Path, what: str, model: Path, batch: Path) -> str:
    """Run this file's `what` with the packages of `tree`; the last line it prints."""
    env = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}
    command = [sys.executable, __file__, f"--{what}", str(model), str(batch)]
    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{tree}: {what} failed:\n{done.stderr}")
    return done.stdout.splitlines()[-1] if done.stdout else ""


def compare(tree: Path, other: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        model, batch = Path(folder, "model"), Path(folder, "batch.npz")
        call(tree, "make", model, batch)
        one, two = (json.loads(call(checkout, "run", model, batch)) for checkout in (tree, other))
    settings = {}
    for name in SETTINGS:
        first, second = one[name], two[name]
        pairs = list(zip(first["steps"], second["steps"], strict=True))
        settings[name] = {
            "num_gradients": len(first["gradients"]),
            "gradients_equal": first["gradients"] == second["gradients"],
            "weights_equal": [a["weights"] == b["weights"] for a, b in pairs],
            "figures_equal": [a["figures"] == b["figures"] for a, b in pairs],
            "figures": first["steps"][-1]["figures"],
            "weights": first["steps"][-1]["weights"][:16],
        }
    equal = all(
        case["gradients_equal"] and all(case["weights_equal"]) and all(case["figures_equal"])
        for case in settings.values()
    )
    return {"trees": [str(tree), str(other)], "equal": equal, "settings": settings}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--make", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.make:
        make(arguments.first, arguments.second)
        return 0
    if arguments.run:
        print(json.dumps(run(arguments.first, arguments.second)))
        return 0
    comparison = compare(arguments.first.resolve(), arguments.second.resolve())
    print(json.dumps(comparison, indent=2))
    return 0 if comparison["equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
