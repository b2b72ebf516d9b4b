"""What a model directory must hold, checked before anything heavy is imported.

Three levels: the tokenizer alone (an evaluation), what an engine can serve, and what a campaign can
train. Each raises ModelError naming the directory or the file. Used by engines, the tokenizer, and
wherever a directory is named, so that all complain in the same words.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.policy.weight_files import read_weights
from mainspring.errors import ModelError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
"""Either one: the second alone suffices for tokenizers with their own files (vocab, merges)."""
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
"""Where a chat template may lie instead of tokenizer_config.json."""
TRAINABLE = ("qwen3", "qwen2", "llama", "qwen3_moe")
"""Values of `model_type` that the trainer knows (trainer.model.FAMILIES)."""
EMBEDDING = "model.embed_tokens.weight"
REMEDY = "expected a Hugging Face model directory (config.json, tokenizer.json, *.safetensors)"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a config.json tells about its model."""

    model_type: str
    architectures: tuple[str, ...]
    vocab_size: int | None
    """Ids below this have a row in the embedding; None where the config does not name it."""
    max_context: int | None
    """Longest sequence the model was made for."""


def check_model_directory(directory: Path) -> None:
    """Raises ModelError unless a campaign can train and serve what lies there."""
    check_servable(directory)
    facts = read_facts(directory)
    if facts.model_type not in TRAINABLE:
        raise ModelError(
            f"model directory {directory}: model_type {facts.model_type!r} cannot be trained",
            remedy=f"use a model of {', '.join(TRAINABLE)}",
        )
    _check_vocabulary(directory, facts)
    if not _has_chat_template(directory):
        raise ModelError(
            f"model directory {directory}: the tokenizer has no chat template",
            remedy="use an instruction-tuned model, or set chat_template in tokenizer_config.json",
        )


def _check_vocabulary(directory: Path, facts: ModelFacts) -> None:
    """Weights and config of two models in one folder show only when ranks have started."""
    embedding = read_weights(directory).get(EMBEDDING)
    if embedding is None or facts.vocab_size in (None, embedding.shape[0]):
        return  # other names are refused by the import, which knows them all
    raise ModelError(
        f"model directory {directory}: config.json has vocab_size = {facts.vocab_size}, the "
        f"embedding in {embedding.file.name} has {embedding.shape[0]} rows",
        remedy="give the config.json that belongs to the weights",
    )


def check_servable(directory: Path) -> None:
    """Raises ModelError unless an engine can serve it: a tokenizer, a config, whole weights."""
    check_tokenizer_files(directory)
    read_facts(directory)
    read_weights(directory)


def check_tokenizer_files(directory: Path) -> None:
    if not directory.is_dir():
        raise ModelError(f"model directory {directory}: no such directory", remedy=_how(directory))
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
    name = _read_json(config).get("tokenizer_class")
    return name if isinstance(name, str) else None


def read_facts(directory: Path) -> ModelFacts:
    """Raises ModelError without a config.json that describes a causal language model."""
    if not (directory / "config.json").is_file():
        raise ModelError(f"model directory {directory}: no config.json", remedy=REMEDY)
    config = _read_json(directory / "config.json")
    architectures = tuple(str(name) for name in config.get("architectures") or ())
    generates = [name for name in architectures if name.endswith(("CausalLM", "Generation"))]
    if architectures and not generates:
        raise ModelError(
            f"model directory {directory}: architecture {architectures[0]} generates no text",
            remedy="expected a causal language model, such as Qwen3ForCausalLM",
        )
    # A model that also sees or hears keeps its language model's figures one level down.
    text: dict[str, Any] = {**(config.get("text_config") or {}), **config}
    if not text.get("model_type"):
        raise ModelError(
            f"model directory {directory}: config.json names no model_type", remedy=REMEDY
        )
    return ModelFacts(
        model_type=str(text["model_type"]),
        architectures=architectures,
        vocab_size=_whole(text.get("vocab_size")),
        max_context=_whole(text.get("max_position_embeddings")),
    )


def _how(directory: Path) -> str:
    """A hub id is what users of other tools write here; a campaign's weights lie on disk."""
    here = Path.cwd()  # callers make paths absolute: an id is then what follows the working folder
    given = directory.relative_to(here) if directory.is_relative_to(here) else directory
    if _HUB_ID.fullmatch(str(given)):
        return f"{REMEDY}; for a model of the hub: hf download {given} --local-dir {given}"
    return REMEDY


def _has_chat_template(directory: Path) -> bool:
    if any((directory / name).is_file() for name in TEMPLATE_FILES):
        return True
    config = directory / "tokenizer_config.json"
    return config.is_file() and bool(_read_json(config).get("chat_template"))


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"model file {file}: cannot be read: {error}", remedy=REMEDY) from None
    if not isinstance(content, dict):
        raise ModelError(f"model file {file}: expected a JSON object", remedy=REMEDY)
    return content


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
