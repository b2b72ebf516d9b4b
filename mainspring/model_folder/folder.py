"""A model folder judged whole: its config.json, its weights, its tokenizer's ids.

The one judgement for plan, checklist, engines and trainer, so that each refuses the same folder in
the same sentence, before anything is started. Of weights the headers are read, of a tokenizer the
whole file, so a model of any size is judged in less than a second. Imports no transformers.
"""

from pathlib import Path
from typing import Any

from mainspring.errors import ModelError
from mainspring.model_folder.config_file import facts_of, read_config, where
from mainspring.model_folder.families import FAMILIES
from mainspring.model_folder.refusals import FolderUse, check_config
from mainspring.model_folder.sizes import Sizes, sizes_of
from mainspring.model_folder.tensors import check_weights
from mainspring.model_folder.vocabulary import check_vocabulary
from mainspring.model_folder.weights import Weight, has_weights, read_weights

TORCH_NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def check_folder(directory: Path, use: FolderUse, *, needs_weights: bool = True) -> dict[str, Any]:
    """The config.json of a folder that can be used so. `needs_weights`: a plan needs none; weights
    that are there are judged in any case. Raises ModelError."""
    config = read_config(directory)
    check_config(config, where(directory), use)
    if needs_weights or has_weights(directory):
        weights = read_weights(directory)
        if (sizes := known_sizes(config)) is not None:
            check_weights(directory, sizes, weights)
    is_family = config.get("model_type") in FAMILIES
    size = facts_of(config, where(directory)).vocab_size
    if size is not None and use >= FolderUse.SERVED:
        check_vocabulary(directory, size, is_trained=is_family)
    return config


def known_sizes(config: dict[str, Any]) -> Sizes | None:
    """None of a model whose weights only transformers can name: one that is not trained."""
    if config.get("model_type") not in FAMILIES:
        return None
    try:
        check_config(config, "", FolderUse.TRAINED)
    except ModelError:
        return None
    return Sizes(**sizes_of(config))


def export_dtype(directory: Path, config: dict[str, Any]) -> str:
    """Dtype of the weights of an export: that of config.json, else the one in which they are
    stored, as transformers takes it; where they differ, the widest, which loses nothing."""
    named = config.get("dtype") or config.get("torch_dtype")
    if named is not None:
        return str(named)
    if not has_weights(directory):
        return "float32"
    return widest(read_weights(directory))


def widest(weights: dict[str, Weight]) -> str:
    stored = {weight.dtype for weight in weights.values()} & TORCH_NAMES.keys()
    return TORCH_NAMES[stored.pop()] if len(stored) == 1 else "float32"
