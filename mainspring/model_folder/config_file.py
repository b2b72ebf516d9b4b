"""A model folder's config.json: read in one way, for all that need it.

Raises ModelError naming the folder. Imported by the rest of this folder and by whatever only asks
for a fact. Imports no transformers.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mainspring.errors import ModelError

CONFIG = "config.json"
_VERSION = re.compile(r"/campaigns/(?P<campaign>[^/]+)/policies/v(?P<version>\d{5})/hf$")
REMEDY = "expected a Hugging Face model directory (config.json, tokenizer.json, *.safetensors)"
GENERATES = ("CausalLM", "LMHeadModel", "Generation")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


SIZES = (
    *("num_hidden_layers", "hidden_size", "intermediate_size", "head_dim"),
    *("num_attention_heads", "num_key_value_heads", "num_experts", "num_local_experts"),
)
"""Figures of a config.json without which weights of another model do not fit."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts that a config.json tells about its model."""

    model_type: str
    architectures: tuple[str, ...]
    vocab_size: int | None
    """Ids below this have a row in the embedding; None where the config does not name it."""
    max_context: int | None
    """Longest sequence the model was made for."""
    sizes: Mapping[str, int]
    """Those of SIZES that the config names."""


def where(directory: Path) -> str:
    return f"model directory {directory}"


def check_is_directory(directory: Path) -> None:
    if not directory.is_dir():
        lost = _lost_version(directory)
        beside = "" if directory.is_absolute() else f" beside the campaign file or in {Path.cwd()}"
        raise ModelError(
            f"{where(directory)}: no such directory{beside}{lost}", remedy=_how(directory)
        )


def _lost_version(directory: Path) -> str:
    """More of the sentence where it was a policy version's, and others of its campaign are here."""
    match = _VERSION.search(str(directory))
    if match is None or not directory.parents[1].is_dir():
        return ""
    return (
        f". The files of policy version {int(match['version'])} are gone: put the folder back from "
        f"a backup, or take the version back (`mainspring campaign rollback {match['campaign']}`)"
    )


def read_config(directory: Path) -> dict[str, Any]:
    """Raises ModelError without a config.json that is an object."""
    check_is_directory(directory)
    file = directory / CONFIG
    if not file.is_file():
        raise ModelError(f"{where(directory)}: no {CONFIG}", remedy=REMEDY)
    return read_json(file)


def read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes().decode("utf-8"))
    except RecursionError:
        raise ModelError(f"model file {file}: nested too deeply", remedy=REMEDY) from None
    except (OSError, ValueError) as error:
        raise ModelError(f"model file {file}: cannot be read: {error}", remedy=REMEDY) from None
    if not isinstance(content, dict):
        raise ModelError(f"model file {file}: expected a JSON object", remedy=REMEDY)
    return content


def facts_of(config: dict[str, Any], named: str) -> ModelFacts:
    """`named`: begins the message. Raises ModelError for what generates no text."""
    listed = config.get("architectures")
    if listed is not None and not (
        isinstance(listed, list) and all(isinstance(name, str) for name in listed)
    ):
        raise ModelError(
            f"{named}: {CONFIG} has architectures = {listed!r}, expected a list of texts",
            remedy="restore the config.json that belongs to the weights",
        )
    architectures = tuple(listed or ())
    generates = [name for name in architectures if name.endswith(GENERATES)]
    if architectures and not generates:
        raise ModelError(
            f"{named}: architecture {architectures[0]} generates no text",
            remedy="expected a causal language model, such as Qwen3ForCausalLM",
        )
    # A model that also sees or hears keeps its language model's figures one level down.
    inner = config.get("text_config")
    inner = inner if isinstance(inner, dict) else {}
    text: dict[str, Any] = {**inner, **config}
    kind = text.get("model_type")
    if not isinstance(kind, str) or not kind:
        detail = "" if kind in (None, "") else f" (it has {kind!r})"
        raise ModelError(f"{named}: {CONFIG} names no model_type{detail}", remedy=REMEDY)
    return ModelFacts(
        model_type=kind,
        architectures=architectures,
        vocab_size=_whole(text.get("vocab_size")),
        max_context=_whole(text.get("max_position_embeddings")),
        sizes=sizes_of({**config, **inner}),
    )


def _how(directory: Path) -> str:
    """A hub id is what users of other tools write here; a campaign's weights lie on disk."""
    here = Path.cwd()  # callers make paths absolute: an id is then what follows the working folder
    folder = directory.relative_to(here) if directory.is_relative_to(here) else directory
    if _HUB_ID.fullmatch(str(folder)):
        return f"{REMEDY}; for a model of the hub: hf download {folder} --local-dir {folder}"
    return REMEDY


def sizes_of(config: Mapping[str, Any]) -> dict[str, int]:
    """Those of SIZES that a language model's config tells."""
    return {name: size for name in SIZES if (size := _whole(config.get(name))) is not None}


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
