"""Adapters with random weights, and whole models with the same sum made."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from mainspring.artifacts.adapter_files import CONFIG, DIRECTORY, WEIGHTS

RANK, ALPHA = 4, 8.0
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def save_version(directory: Path, base: Path, seed: int) -> Path:
    """A policy version of a campaign with adapters: the whole model, and adapter/ in it."""
    directory.mkdir()
    for file in base.iterdir():
        if file.suffix != ".safetensors":
            (directory / file.name).write_bytes(file.read_bytes())
    rng = torch.Generator().manual_seed(seed)
    weights, adapter = load_file(base / "model.safetensors"), {}
    for name in [name for name in weights if name.split(".")[-2] in TARGETS]:
        rows, columns = weights[name].shape
        a = torch.randn(RANK, columns, generator=rng) * 0.3
        b = torch.randn(rows, RANK, generator=rng) * 0.3
        weights[name] = weights[name] + ALPHA / RANK * b @ a
        module = f"base_model.model.{name.removesuffix('.weight')}"
        adapter |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    folder = directory / DIRECTORY
    folder.mkdir()
    save_file(adapter, folder / WEIGHTS, metadata={"format": "pt"})
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": TARGETS}
    (folder / CONFIG).write_text(json.dumps(config))
    return directory
