"""The weights of a model directory as their headers describe them: names, shapes, whole files.

Reads headers only, so a directory of any size is checked in milliseconds, without torch. A file cut
short by a full disk or a killed writer shows in its size. Invariant: which files count is decided
here alone, for plan, checklist, engine, publisher and trainer.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from mainspring.errors import ModelError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_OTHERS = ("pytorch_model*.bin", "*.gguf", "*.pt", "*.pth")
"""Weights in formats that are not read."""
_FREQUENCIES = re.compile(r"rotary_emb\.inv_freq")
LFS_POINTER = b"version https://git-lfs"
"""Beginning of the file that git keeps in the place of a large one."""
AGAIN = "copy, download or export the directory again, whole"
_DTYPE_BYTES = {
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "F32": 4,
    "I32": 4,
    "U32": 4,
    "F16": 2,
    "BF16": 2,
    "I16": 2,
    "U16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor of a file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    """Its bytes in the file: [start, end)."""
    end: int


def has_weights(directory: Path) -> bool:
    """Whether there are weights in any format; a plan needs none."""
    return any(next(directory.glob(pattern), None) for pattern in ("*.safetensors*", *_OTHERS))


def read_weights(directory: Path) -> dict[str, Weight]:
    """Every weight by name, in the files that transformers loads; rotary frequencies, which old
    conversions stored, are left out as it leaves them out. Raises ModelError naming the file that
    is missing, cut or damaged."""
    index, single = directory / INDEX, directory / SINGLE
    if not index.is_file():
        if not single.is_file():
            raise _no_weights(directory)
        weights = dict(_read_file(single))
    else:
        placed = _weight_map(index)
        if single.is_file() and set(placed.values()) != {SINGLE}:
            raise ModelError(
                f"model directory {directory}: {SINGLE} lies beside {INDEX}, which names other "
                "files: engines differ in which of them they load",
                remedy="remove the one that does not belong to the model",
            )
        weights = _read_shards(directory, placed)
    return {name: weight for name, weight in weights.items() if not _FREQUENCIES.search(name)}


def _no_weights(directory: Path) -> ModelError:
    strays = sorted(
        {f.name for pattern in ("*.safetensors", *_OTHERS) for f in directory.glob(pattern)}
    )
    beside = f"; {', '.join(strays[:3])} is not loaded" if strays else ""
    return ModelError(
        f"model directory {directory}: no *.safetensors of a model ({SINGLE} or {INDEX}){beside}",
        remedy="save the model with transformers' save_pretrained(directory)",
    )


def _read_shards(directory: Path, placed: dict[str, str]) -> dict[str, Weight]:
    weights: dict[str, Weight] = {}
    for shard in sorted(set(placed.values())):
        if Path(shard).name != shard:
            raise ModelError(f"weights {directory / INDEX}: {shard!r} is no file of its folder")
        if not (directory / shard).is_file():
            raise ModelError(
                f"model directory {directory}: {shard} is missing, {INDEX} names it",
                remedy=AGAIN,
            )
        for name, weight in _read_file(directory / shard):
            if name in weights:
                raise ModelError(
                    f"model directory {directory}: {name} is in {weights[name].file.name} and in "
                    f"{shard}",
                    remedy=AGAIN,
                )
            weights[name] = weight
    for name, shard in placed.items():
        if name not in weights or weights[name].file.name != shard:
            raise ModelError(
                f"weights {directory / shard}: {name} is missing, {INDEX} places it", remedy=AGAIN
            )
    return weights


def _weight_map(index: Path) -> dict[str, str]:
    _refuse_pointer(index)
    try:
        document = json.loads(index.read_text())
        placed = document.get("weight_map") if isinstance(document, dict) else None
        if not isinstance(placed, dict):
            raise ModelError(f"weights {index}: it has no table `weight_map`", remedy=AGAIN)
        return {str(name): str(shard) for name, shard in placed.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"weights {index}: cannot be read: {error!r}", remedy=AGAIN) from None


def _read_file(file: Path) -> Iterator[tuple[str, Weight]]:
    _refuse_pointer(file)
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            begin = 8 + int.from_bytes(opened.read(8), "little")
            if not 8 < begin <= size:
                raise _cut(file, begin, size)
            entries: dict[str, Any] = json.loads(opened.read(begin - 8))
        entries.pop("__metadata__", None)
        weights = {name: _weight(file, begin, entry) for name, entry in entries.items()}
    except PermissionError:
        raise ModelError(
            f"weights {file}: may not be read by user {os.geteuid()}",
            remedy=f"let every user read the model: chmod -R a+rX {file.parent}",
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"weights {file}: cannot be read: {error!r}",
            remedy=AGAIN,
        ) from None
    end = max((weight.end for weight in weights.values()), default=begin)
    if end != size:
        raise _cut(file, end, size)
    yield from weights.items()


def _refuse_pointer(file: Path) -> None:
    """Raises ModelError for what git clones in the place of a large file."""
    try:
        with file.open("rb") as opened:
            is_pointer = opened.read(len(LFS_POINTER)) == LFS_POINTER
    except OSError:
        return  # the reader tells
    if is_pointer:
        raise ModelError(
            f"weights {file}: it is a pointer of git LFS, not the weights",
            remedy=f"run `git lfs pull` in {file.parent}, or download the model with `hf download`",
        )


def _weight(file: Path, begin: int, entry: dict[str, Any]) -> Weight:
    start, end = entry["data_offsets"]
    shape = tuple(int(length) for length in entry["shape"])
    weight = Weight(file, str(entry["dtype"]), shape, begin + start, begin + end)
    width = _DTYPE_BYTES.get(weight.dtype)
    if width is not None and end - start != width * int(numpy.prod(shape, dtype=numpy.int64)):
        raise ValueError(f"{weight.dtype} {list(shape)} does not take {end - start} bytes")
    return weight


def _cut(file: Path, expected: int, size: int) -> ModelError:
    return ModelError(
        f"weights {file}: {size} bytes, its header asks for {expected}: the file is cut or damaged",
        remedy=AGAIN,
    )
