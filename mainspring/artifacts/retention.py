"""Which policy versions stay on disk, and which are copied. Pure.

Invariants: version 0 stays, for the tokenizer and the reference of a KL penalty; so does the newest
version, which engines load, and the newest checkpoint, from which training resumes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Checkpoints(StrEnum):
    """Which policy versions are copied with their files."""

    NONE = "none"
    """None; the archive has their paths and identities."""
    NEWEST = "newest"
    """Version 0, the newest, and the newest with a checkpoint."""
    ALL = "all"
    """All that are on disk."""


@dataclass(frozen=True, slots=True)
class StoredVersion:
    version: int
    has_checkpoint: bool
    """Weights and optimizer; otherwise weights alone."""
    solve_rate: float | None = None
    """Over all its evaluations that have ended; None without one."""
    is_evaluated_now: bool = False
    """One of its evaluations has not ended."""


def kept_versions(
    versions: Sequence[StoredVersion], keep_checkpoints: int, keep_best: int
) -> set[int]:
    """Numbers to keep of `versions`, in order: the newest `keep_checkpoints` with a checkpoint and
    as many of all; the `keep_best` that solved most, of equal ones the newer; and what may still
    become one of these."""
    numbers = {0}
    numbers |= {version.version for version in versions[-keep_checkpoints:]}
    resumable = [version.version for version in versions if version.has_checkpoint]
    numbers |= set(resumable[-keep_checkpoints:])
    if keep_best:
        rated = [
            (version.solve_rate, version.version)
            for version in versions
            if version.solve_rate is not None
        ]
        numbers |= {version for _, version in sorted(rated)[-keep_best:]}
        numbers |= {version.version for version in versions if version.is_evaluated_now}
    return numbers
