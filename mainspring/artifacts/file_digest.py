"""A file's SHA-256, and how one that was altered is told: manifests name files by it."""

import hashlib
from pathlib import Path


def sha256_of(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def altered(path: str, actual: str, expected: str) -> str:
    """`actual` and `expected`: digests of the file at `path`."""
    return (
        f"has an altered file {path}: its SHA-256 begins with {actual[:12]}, expected "
        f"{expected[:12]}"
    )
