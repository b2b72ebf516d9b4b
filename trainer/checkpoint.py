"""A checkpoint directory: one file per tensor-parallel rank, a Hugging Face export, a manifest.

    <directory>/tp0.pt ..       model and optimizer of each tensor-parallel rank
    <directory>/hf/             what policy engines load
    <directory>/checkpoint.json written last

Invariant: a directory under its own name is complete. It is written under a temporary name beside
it, flushed, and renamed; what a killed process leaves behind is never loaded. Imports no torch.
"""

import os
import shutil
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from mainspring.errors import ModelError

HF_DIRECTORY = "hf"
MANIFEST = "checkpoint.json"
TEMPORARY = ".tmp-"
FORMAT = 1


class Manifest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int = FORMAT
    version: int
    """Policy version of the weights."""
    tensor_parallel: int


def rank_file(directory: Path, tp_rank: int) -> Path:
    return directory / f"tp{tp_rank}.pt"


def read_manifest(directory: Path) -> Manifest:
    """Raises ModelError when `directory` is no complete checkpoint."""
    if TEMPORARY in directory.name:
        raise ModelError(f"checkpoint {directory} was left half-written by a killed trainer")
    try:
        manifest = Manifest.model_validate_json((directory / MANIFEST).read_text())
    except (OSError, ValidationError) as error:
        raise ModelError(
            f"checkpoint {directory} is not complete: {MANIFEST}: {error}",
            remedy="load an older checkpoint of the campaign",
        ) from None
    if manifest.format != FORMAT:
        raise ModelError(f"checkpoint {directory} has format {manifest.format}, expected {FORMAT}")
    return manifest


def begin(directory: Path) -> Path:
    """A fresh temporary directory for `directory`; removes those of killed attempts."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    for left in directory.parent.glob(f"{directory.name}{TEMPORARY}*"):
        shutil.rmtree(left)
    temporary = directory.with_name(f"{directory.name}{TEMPORARY}{os.getpid()}")
    temporary.mkdir()
    return temporary


def commit(temporary: Path, directory: Path, manifest: Manifest) -> None:
    """Make the finished `temporary` visible as `directory`, in one rename, on disk."""
    (temporary / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n")
    for path in [*temporary.rglob("*"), temporary]:
        _flush(path)
    temporary.rename(directory)
    _flush(directory.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
