"""Checks of what a model directory must hold for a campaign or an engine, before anything heavy.

Three levels: the tokenizer alone (an evaluation), what an engine can serve, and what a campaign can
train. The model itself is judged by `mainspring.model_folder`; here are the tokenizer's files
beside it. Each raises ModelError naming the directory or the file.
"""

import hashlib
from pathlib import Path

from mainspring.errors import ModelError
from mainspring.model_folder.config_file import (
    ModelFacts,
    check_is_directory,
    facts_of,
    read_config,
    read_json,
    where,
)
from mainspring.model_folder.families import FAMILIES
from mainspring.model_folder.folder import check_folder
from mainspring.model_folder.refusals import FolderUse

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
"""Either one: the second alone suffices for tokenizers with their own files (vocab, merges)."""
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
"""Where a chat template may lie instead of tokenizer_config.json."""


def check_model_directory(directory: Path, use: FolderUse = FolderUse.TRAINED) -> None:
    """Raises ModelError unless a campaign can train and serve what lies there; `use`: by its
    engine."""
    check_servable(directory, use)
    if not _has_chat_template(directory):
        raise ModelError(
            f"model directory {directory}: the tokenizer has no chat template",
            remedy="use an instruction-tuned model, or set chat_template in tokenizer_config.json",
        )


def check_servable(directory: Path, use: FolderUse = FolderUse.READ) -> None:
    """Raises ModelError unless an engine can serve it: a tokenizer, a config, whole weights."""
    check_tokenizer_files(directory)
    kind = check_folder(directory, use)["model_type"]
    if use in (FolderUse.SERVED, FolderUse.ANY_MODEL) and kind not in FAMILIES:
        _check_known(directory, kind)


def _check_known(directory: Path, kind: str) -> None:
    """Such a model is computed by transformers' code: it must be there before weights are read."""
    try:
        import transformers  # a second of CPU, which the four families are spared
        from transformers import CONFIG_MAPPING
    except ImportError:  # the machine that computes it has it, and judges there
        return
    if kind not in CONFIG_MAPPING:
        raise ModelError(
            f"model directory {directory}: transformers {transformers.__version__} does not know "
            f"model_type {kind!r}",
            remedy="use another model, or install a transformers that knows it",
        )


def check_tokenizer_files(directory: Path) -> None:
    check_is_directory(directory)
    if not any((directory / name).is_file() for name in TOKENIZER_FILES):
        raise ModelError(
            f"model directory {directory}: no tokenizer ({' or '.join(TOKENIZER_FILES)})",
            remedy="save the tokenizer beside the weights: tokenizer.save_pretrained(directory)",
        )


def read_tokenizer_class(directory: Path) -> str | None:
    """None where no file names it, or tokenizer.json is missing. Raises ModelError."""
    config = directory / "tokenizer_config.json"
    if not config.is_file() or not (directory / "tokenizer.json").is_file():
        return None
    name = read_json(config).get("tokenizer_class")
    return name if isinstance(name, str) else None


def read_facts(directory: Path) -> ModelFacts:
    """Raises ModelError without a config.json that describes a causal language model."""
    return facts_of(read_config(directory), where(directory))


def tokenizer_digest(directory: Path) -> str | None:
    """SHA-256 of the folder's tokenizer.json; None: it has none, or is not on this machine."""
    try:
        return hashlib.sha256((directory / "tokenizer.json").read_bytes()).hexdigest()
    except OSError:
        return None


def _has_chat_template(directory: Path) -> bool:
    if any((directory / name).is_file() for name in TEMPLATE_FILES):
        return True
    config = directory / "tokenizer_config.json"
    return config.is_file() and bool(read_json(config).get("chat_template"))
