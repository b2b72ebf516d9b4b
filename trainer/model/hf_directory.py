"""A Hugging Face model directory: its config and weights in, the same with new weights out.

Invariants: weights are read and written one at a time or in bounded files, never all at once; what
is written has the source's config and tokenizer files byte for byte and its weights in the dtype
its config names, so any engine that served the source serves it.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig

from mainspring.artifacts.layout import BASE_IDENTITY
from mainspring.errors import ModelError
from mainspring.model_folder.config_file import read_config
from mainspring.model_folder.folder import check_folder, export_dtype
from mainspring.model_folder.refusals import FolderUse
from mainspring.model_folder.weights import INDEX, SINGLE, read_weights

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".safetensors.index.json")
FILE_BYTES = 4 << 30
"""Bytes of one file of weights, and of the host memory that an export needs."""


def load_config(model_dir: Path, use: FolderUse = FolderUse.TRAINED) -> PretrainedConfig:
    """Raises ModelError when `model_dir` is not a model directory, or of a model that cannot be
    trained. Its weights are judged where they are there; an import of them asks for all."""
    check_folder(model_dir, use, needs_weights=False)
    try:
        return AutoConfig.from_pretrained(model_dir, local_files_only=True)
    except Exception as error:  # the library has no class of its own for a config that it refuses
        raise ModelError(
            f"model directory {model_dir}: its config cannot be read: {error}",
            remedy="give a Hugging Face model directory with a config.json",
        ) from error


def dtype_of(source: Path) -> torch.dtype:
    """Dtype of the weights of an export with the config of `source`."""
    return getattr(torch, export_dtype(source, read_config(source)))


class HfReader:
    def __init__(self, model_dir: Path) -> None:
        """Raises ModelError when there are no weights, a file is damaged or one is missing."""
        self._model_dir = model_dir
        self._weights = read_weights(model_dir)
        self._files: dict[Path, Any] = {}
        for path in sorted({weight.file for weight in self._weights.values()}):
            try:
                self._files[path] = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise ModelError(f"weights {path} cannot be read: {error}") from None

    @property
    def names(self) -> list[str]:
        return sorted(self._weights)

    @property
    def files(self) -> dict[str, Path]:
        """File of each weight."""
        return {name: weight.file for name, weight in self._weights.items()}

    def read(self, name: str) -> Tensor:
        """In the dtype it is stored in. Raises ModelError."""
        if name not in self._weights:
            files = ", ".join(path.name for path in self._files)
            raise ModelError(
                f"model {str(self._model_dir)!r}: weight {name!r} is missing from {files}",
                remedy="expected the weights that its config.json describes",
            )
        return self._files[self._weights[name].file].get_tensor(name)


def load_weights(model_dir: Path) -> dict[str, Tensor]:
    """All weights as float32. Raises ModelError when there are none or a file is damaged."""
    reader = HfReader(model_dir)
    return {name: reader.read(name).float() for name in reader.names}


class HfWriter:
    """One rank's part of a new directory: `begin` and `finish` are the first rank's alone."""

    def __init__(self, directory: Path, source: Path, *, part: int = 0) -> None:
        self._directory = directory
        self._source = source
        self._part = part
        self._dtype = dtype_of(source)
        self._waiting: dict[str, Tensor] = {}
        self._num_bytes = 0
        self.files: dict[str, str] = {}
        """File of each weight that was written."""

    def begin(self) -> None:
        self._directory.mkdir()  # no parents: that another trainer removed them must be seen
        for file in self._source.iterdir():
            if file.is_file() and not file.name.endswith((*WEIGHT_SUFFIXES, BASE_IDENTITY)):
                shutil.copyfile(file, self._directory / file.name)

    def add(self, weights: dict[str, Tensor], *, as_given: bool = False) -> None:
        """`as_given`: in their own dtype, not in the config's."""
        for name, weight in weights.items():
            dtype = weight.dtype if as_given else self._dtype
            copy = weight.to("cpu", dtype, copy=True).contiguous()
            self._waiting[name] = copy
            self._num_bytes += copy.numel() * copy.element_size()
        if self._num_bytes >= FILE_BYTES:
            self.flush()

    def flush(self) -> None:
        if not self._waiting:
            return
        number = len(set(self.files.values()))
        name = f"model-{self._part:05d}-{number:05d}.safetensors"
        self._save(name)

    def finish(self, files: dict[str, str]) -> None:
        """`files`: of all ranks."""
        if len(set(files.values())) == 1:
            [only] = set(files.values())
            (self._directory / only).rename(self._directory / SINGLE)
            return
        index = {"metadata": {}, "weight_map": dict(sorted(files.items()))}
        (self._directory / INDEX).write_text(json.dumps(index, indent=2) + "\n")

    def _save(self, name: str) -> None:
        save_weights(self._waiting, self._directory / name, self._directory / "config.json")
        self.files |= dict.fromkeys(self._waiting, name)
        self._waiting, self._num_bytes = {}, 0


def save_weights(weights: dict[str, Tensor], file: Path, like: Path) -> None:
    """Write `file` with the permissions of `like`: safetensors keeps its files for their owner, and
    an engine may run as somebody else."""
    save_file(weights, file, metadata={"format": "pt"})
    shutil.copymode(like, file)
