"""Two model directories compared: by names and shapes, and by one digest of all values.

A publisher compares what a trainer wrote with what the campaign serves; an engine and a publisher
compare digests. What is in a directory is read by `mainspring.model_folder.weights`.
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy

from mainspring.errors import ModelError
from mainspring.model_folder.weights import Weight, read_weights

OUTPUT = "lm_head.weight"
OF_ANOTHER_MODEL = "is the directory of this campaign's model? Then export it again"


def check_same_weights(directory: Path, expected: Path, *, more_allowed: bool = False) -> None:
    """Raises ModelError unless `directory` has the weights of `expected` by name and shape, and no
    others. `more_allowed`: a tied model may hold its output weight a second time."""
    weights, expected_weights = read_weights(directory), read_weights(expected)
    for name, weight in expected_weights.items():
        if name not in weights:
            raise ModelError(
                f"model directory {directory}: weight {name} is missing, {expected} has it",
                remedy=OF_ANOTHER_MODEL,
            )
        if weights[name].shape != weight.shape:
            raise ModelError(
                f"model directory {directory}: weight {name} is {list(weights[name].shape)}, "
                f"expected {list(weight.shape)} as in {expected}",
                remedy=OF_ANOTHER_MODEL,
            )
    if not more_allowed and (unknown := sorted(weights.keys() - expected_weights.keys())):
        raise ModelError(
            f"model directory {directory}: weight {unknown[0]} is unknown, {expected} has no such "
            "weight",
            remedy=OF_ANOTHER_MODEL,
        )


def has_output_layer(directory: Path) -> bool:
    """Whether it has an output layer of its own; else that is the embeddings. Raises ModelError."""
    return OUTPUT in read_weights(directory)


def weights_digest(directory: Path) -> str | None:
    """SHA-256 over names and values as float32, in order of names; None for a dtype that has no
    exact float32 value here. Raises ModelError."""
    digest = hashlib.sha256()
    for name, weight in sorted(read_weights(directory).items()):
        values = as_float32(weight)
        if values is None:
            return None
        add_to_digest(digest, name, values)
    return digest.hexdigest()


def add_to_digest(digest: Any, name: str, values: numpy.ndarray) -> None:
    """One weight, as `weights_digest` counts it: both sides of a comparison use this."""
    digest.update(name.encode())
    digest.update(numpy.ascontiguousarray(values).data)


def as_float32(weight: Weight) -> numpy.ndarray | None:
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
