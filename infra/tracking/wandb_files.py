"""Reads the rows of a run that Weights & Biases wrote offline.

The file is a LevelDB log of protobuf records after a header of its own: blocks of 32 KiB, each
entry with checksum (4 bytes), length (2) and type (1: whole, 2: first, 3: middle, 4: last).
Invariants: a file whose header is another is refused, because rows would be written twice; an entry
that was cut off by a killed process ends the file, and is no row.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

from mainspring.errors import ServiceError

messages: Any = wandb_internal_pb2
"""Made when it is imported: type checkers cannot look inside."""
HEADER, HEADER_BYTES = b":W&B", 7
BLOCK_BYTES = 32 * 1024
ENTRY_HEADER = struct.Struct("<IHB")
WHOLE, FIRST, MIDDLE, LAST = range(1, 5)


def rows_of(file: Path) -> Iterator[dict[str, Any]]:
    """Raises ServiceError."""
    content = file.read_bytes()
    if not content:
        return  # killed before anything was written
    if content[: len(HEADER)] != HEADER:
        raise ServiceError(
            f"{file}: not a run of Weights & Biases as this version reads it",
            remedy="install the wandb that constraints.txt names, or move the file away",
        )
    for payload in _payloads(content):
        record = messages.Record()
        record.ParseFromString(payload)
        if record.HasField("history"):
            yield {
                item.key or ".".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }


def _payloads(content: bytes) -> Iterator[bytes]:
    at, parts = HEADER_BYTES, b""
    while True:
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < ENTRY_HEADER.size:
            at += left  # the rest of a block is filled up
        if at + ENTRY_HEADER.size > len(content):
            return
        _, length, kind = ENTRY_HEADER.unpack_from(content, at)
        end = at + ENTRY_HEADER.size + length
        if kind not in (WHOLE, FIRST, MIDDLE, LAST) or end > len(content):
            return
        payload = content[at + ENTRY_HEADER.size : end]
        at = end
        parts = payload if kind in (WHOLE, FIRST) else parts + payload
        if kind in (WHOLE, LAST):
            yield parts
