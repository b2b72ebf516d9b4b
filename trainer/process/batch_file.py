"""A step's batch as one file, through which ranks get it: written once, mapped by each rank.

Owns the layout: length and text of a JSON header (rollouts, branches, rewards and lengths of the
samples), then the five arrays of all samples one after the other, each kind in a section of its
own.
Invariants: what a rank reads is what was written, bit for bit and in order, or BatchFileDamaged is
raised before anything is computed (the digest covers every byte and travels beside the path); a
file ends with its step, and what a killed trainer left ends before the next file is written. A
newer trainer's files are left alone. Every step reads its batch from the store, so that a file is
never needed after a crash. With more than one host the folder is on the file system that
checkpoints need, too. Imported by `trainer.process.backend`, `trainer.process.driver` and
`trainer.process.actor`.
"""

import hashlib
import json
import mmap
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mainspring.training.training_faults import BatchFileDamaged
from mainspring.trajectories.samples import Sample

_ARRAYS = {
    "token_ids": np.dtype("<i4"),
    "logprobs": np.dtype("<f4"),
    "versions": np.dtype("<i4"),
    "advantages": np.dtype("<f4"),
    "action_mask": np.dtype(np.bool_),
}
"""Arrays of a sample, each [T], in the order of their sections."""
_ALIGNMENT_BYTES = 64
"""Alignment of the sections, as numpy aligns its own arrays."""
_LENGTH_BYTES = 8
"""The header's length: the first bytes, little-endian."""
_BUFFER_BYTES = 1 << 20
_NAME = re.compile(r"step\d+-epoch(\d+)\.batch")


@dataclass(frozen=True, slots=True)
class BatchFile:
    """A reference to the file, which travels to the ranks."""

    path: Path
    num_bytes: int
    sha256: str

    def samples(self) -> list[Sample]:
        """As they were written; their arrays are read-only views of the file, which may be removed
        while they are used. Raises BatchFileDamaged."""
        try:
            with self.path.open("rb") as file:
                if (size := file.seek(0, 2)) != self.num_bytes:
                    raise self._damaged(f"has {size} bytes, expected {self.num_bytes}")
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise self._damaged(f"cannot be read: {error}") from error
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise self._damaged("holds other bytes than were written")
        return _samples(content)

    def _damaged(self, problem: str) -> BatchFileDamaged:
        return BatchFileDamaged(
            f"batch file {self.path}: {problem}",
            remedy="the step is tried again with a new file; if this comes again, check the disk, "
            "and that all hosts of the trainer share this folder",
        )


@contextmanager
def batch_file(
    folder: Path, samples: Sequence[Sample], *, step: int, epoch: int
) -> Iterator[BatchFile]:
    """The batch in a file for the length of the block. `epoch`: of the trainer's lease."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(folder, epoch)
    path = folder / f"step{step:05d}-epoch{epoch:05d}.batch"
    try:
        yield _write(path, samples)
    finally:
        path.unlink(missing_ok=True)


def _remove_leftovers(folder: Path, epoch: int) -> None:
    for path in folder.iterdir():
        named = _NAME.fullmatch(path.name)
        if named and int(named[1]) <= epoch:
            path.unlink(missing_ok=True)  # two trainers may meet here


def _write(path: Path, samples: Sequence[Sample]) -> BatchFile:
    header = json.dumps(
        {
            "rollouts": [sample.rollout for sample in samples],
            "branches": [sample.branch for sample in samples],
            "rewards": [sample.reward for sample in samples],
            "turn_rewards": [sample.turn_rewards for sample in samples],
            "lengths": [len(sample.token_ids) for sample in samples],
        }
    ).encode()
    sha256 = hashlib.sha256()
    num_bytes = 0
    with path.open("wb", buffering=_BUFFER_BYTES) as file:

        def put(content: bytes | memoryview) -> None:
            nonlocal num_bytes
            sha256.update(content)
            num_bytes += file.write(content)

        put(len(header).to_bytes(_LENGTH_BYTES, "little"))
        put(header)
        for name, dtype in _ARRAYS.items():
            put(bytes(_padding(num_bytes)))
            for sample in samples:
                values: NDArray = getattr(sample, name)
                assert values.dtype == dtype, f"{name} of {sample.rollout}: {values.dtype}"
                put(np.ascontiguousarray(values).data)
    return BatchFile(path, num_bytes, sha256.hexdigest())


def _samples(content: mmap.mmap) -> list[Sample]:
    start = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
    header = json.loads(content[_LENGTH_BYTES:start])
    ends = list(accumulate(header["lengths"]))
    total = ends[-1] if ends else 0
    sections: dict[str, NDArray] = {}
    for name, dtype in _ARRAYS.items():
        start += _padding(start)
        sections[name] = np.frombuffer(content, dtype, total, start)
        start += total * dtype.itemsize
    return [
        Sample(
            rollout=rollout,
            branch=branch,
            reward=reward,
            turn_rewards=tuple((place, given) for place, given in turn_rewards),
            **{name: values[end - length : end] for name, values in sections.items()},
        )
        for rollout, branch, reward, turn_rewards, length, end in zip(
            header["rollouts"],
            header["branches"],
            header["rewards"],
            header["turn_rewards"],
            header["lengths"],
            ends,
            strict=True,
        )
    ]


def _padding(position: int) -> int:
    return -position % _ALIGNMENT_BYTES
