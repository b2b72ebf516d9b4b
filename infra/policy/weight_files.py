"""The weights of a model directory as their headers describe them: names, shapes, whole files.

Reads headers only, so a directory of any size is checked in milliseconds, without torch. A file cut
short by a full disk or a killed writer shows in its size. Used where a directory is about to be
served, published or trained.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from mainspring.errors import ModelError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
OF_ANOTHER_MODEL = "is the directory of this campaign's model? Then export it again"
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


def read_weights(directory: Path) -> dict[str, Weight]:
    """Every weight by name. Raises ModelError naming the file that is missing, cut or damaged."""
    index = directory / INDEX
    if not index.exists():
        files = [directory / SINGLE] if (directory / SINGLE).exists() else []
        files = files or sorted(directory.glob("*.safetensors"))
        if not files:
            raise ModelError(
                f"model directory {directory}: no *.safetensors",
                remedy="save the model with transformers' save_pretrained(directory)",
            )
        return {name: weight for file in files for name, weight in _read_file(file)}
    placed = _weight_map(index)
    weights: dict[str, Weight] = {}
    for shard in sorted(set(placed.values())):
        if not (directory / shard).is_file():
            raise ModelError(
                f"model directory {directory}: {shard} is missing, {INDEX} names it",
                remedy=AGAIN,
            )
        weights.update(_read_file(directory / shard))
    for name, shard in placed.items():
        if name not in weights or weights[name].file.name != shard:
            raise ModelError(
                f"weights {directory / shard}: {name} is missing, {INDEX} places it", remedy=AGAIN
            )
    return weights


def check_same_weights(directory: Path, expected: Path, *, more_allowed: bool = False) -> None:
    """Raises ModelError unless `directory` has the weights of `expected` by name and shape, and no
    others. `more_allowed`: a tied model may hold its output weight a second time."""
    found, wanted = read_weights(directory), read_weights(expected)
    for name, weight in wanted.items():
        if name not in found:
            raise ModelError(
                f"model directory {directory}: weight {name} is missing, {expected} has it",
                remedy=OF_ANOTHER_MODEL,
            )
        if found[name].shape != weight.shape:
            raise ModelError(
                f"model directory {directory}: weight {name} is {list(found[name].shape)}, "
                f"expected {list(weight.shape)} as in {expected}",
                remedy=OF_ANOTHER_MODEL,
            )
    if not more_allowed and (unknown := sorted(found.keys() - wanted.keys())):
        raise ModelError(
            f"model directory {directory}: weight {unknown[0]} is unknown, {expected} has no such "
            "weight",
            remedy=OF_ANOTHER_MODEL,
        )


def weights_digest(directory: Path) -> str | None:
    """SHA-256 over names and values as float32, in order of names; None for a dtype that has no
    exact float32 value here. Raises ModelError."""
    digest = hashlib.sha256()
    for name, weight in sorted(read_weights(directory).items()):
        values = _as_float32(weight)
        if values is None:
            return None
        add_to_digest(digest, name, values)
    return digest.hexdigest()


def add_to_digest(digest: Any, name: str, values: numpy.ndarray) -> None:
    """One weight, as `weights_digest` counts it: both sides of a comparison use this."""
    digest.update(name.encode())
    digest.update(numpy.ascontiguousarray(values).data)


def _as_float32(weight: Weight) -> numpy.ndarray | None:
    raw = numpy.fromfile(
        weight.file, numpy.uint8, count=weight.end - weight.start, offset=weight.start
    )
    if weight.dtype == "F32":
        return raw.view(numpy.float32)
    if weight.dtype == "F16":
        return raw.view(numpy.float16).astype(numpy.float32)
    if weight.dtype == "BF16":
        return (raw.view(numpy.uint16).astype(numpy.uint32) << 16).view(numpy.float32)
    return None


def _weight_map(index: Path) -> dict[str, str]:
    try:
        placed = json.loads(index.read_text())["weight_map"]
        return {str(name): str(shard) for name, shard in placed.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"weights {index}: cannot be read: {error!r}", remedy=AGAIN) from None


def _read_file(file: Path) -> Iterator[tuple[str, Weight]]:
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
