"""A Hugging Face model directory: its config and weights in, the same with new weights out.

Invariant: what is written has the source's config and tokenizer files byte for byte and its
weights in the dtype its config names, so any engine that served the source serves it.
"""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, PretrainedConfig

from mainspring.errors import ModelError
from mainspring.layout import BASE_IDENTITY

if TYPE_CHECKING:  # it imports Megatron, which only ranks need: seconds of CPU for every trainer
    from trainer.convert import StateDict

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".safetensors.index.json")


def load_config(model_dir: Path) -> PretrainedConfig:
    """Raises ModelError when `model_dir` is not a model directory."""
    try:
        return AutoConfig.from_pretrained(model_dir, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"model directory {model_dir}: its config cannot be read: {error}",
            remedy="give a Hugging Face model directory with a config.json",
        ) from None


def load_weights(model_dir: Path) -> "StateDict":
    """All weights as float32. Raises ModelError when there are none or a file is damaged."""
    files = sorted(model_dir.glob("*.safetensors"))
    if not files:
        raise ModelError(
            f"model directory {model_dir} has no *.safetensors file",
            remedy="convert the weights with transformers' save_pretrained",
        )
    state: StateDict = {}
    for file in files:
        try:
            state |= load_file(file)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"weights {file} cannot be read: {error}") from None
    return {name: weight.float() for name, weight in state.items()}


def save_model(directory: Path, state: "StateDict", source: Path) -> None:
    """Write `state` with the config and tokenizer files of `source` into a new directory."""
    directory.mkdir()  # no parents: another trainer may have removed them, and that must be seen
    for file in source.iterdir():
        if file.is_file() and not file.name.endswith((*WEIGHT_SUFFIXES, BASE_IDENTITY)):
            shutil.copyfile(file, directory / file.name)
    dtype = load_config(source).dtype
    if not isinstance(dtype, torch.dtype):
        dtype = torch.float32
    weights = {name: weight.to("cpu", dtype).contiguous() for name, weight in state.items()}
    file = directory / "model.safetensors"
    save_file(weights, file, metadata={"format": "pt"})
    # safetensors keeps its files for their owner, and an engine may run as somebody else.
    shutil.copymode(directory / "config.json", file)
