"""A policy's adapters as PEFT and engines read them: a folder with adapter_config.json.

Megatron has one matrix where Hugging Face has q, k and v, or gate and up. There A is the same for
all of them, and B is cut by rows as the matrix itself. Invariant: the first rank of all writes one
file, with the adapters of all pipeline stages. Imported by the weights of the engines.
"""

import json
from pathlib import Path

import torch
from torch import Tensor
from transformers import PretrainedConfig

from mainspring.artifacts.adapter_files import CONFIG, WEIGHTS
from mainspring.config.training.lora import LoraConfig
from trainer.model.convert import to_hf
from trainer.model.hf_directory import save_weights


def in_hf_names(
    name: str, a: Tensor, b_parts: list[Tensor], hf: PretrainedConfig
) -> dict[str, Tensor]:
    """The adapter of the mcore matrix `name`, numbered over all ranks, under PEFT's names; B as
    tensor-parallel ranks have it."""
    weights: dict[str, Tensor] = {}
    for hf_name, rows in to_hf(name, b_parts, hf).items():
        module = f"base_model.model.{hf_name.removesuffix('.weight')}"
        weights[f"{module}.lora_A.weight"] = a.to("cpu", torch.float32, copy=True)
        weights[f"{module}.lora_B.weight"] = rows.to("cpu", torch.float32, copy=True).contiguous()
    return weights


def write(directory: Path, weights: dict[str, Tensor], lora: LoraConfig, model_dir: Path) -> None:
    """Write a new folder; `model_dir`: of the frozen weights."""
    directory.mkdir()
    targets = {name.split(".")[-3] for name in weights}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model_dir),
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(targets),
    }
    (directory / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    save_weights(weights, directory / WEIGHTS, directory / CONFIG)
