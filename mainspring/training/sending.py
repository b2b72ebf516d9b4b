"""Weights sent from a trainer's ranks straight into engines: where they meet, and what comes next.

SGLang's terms: engines join a process group whose rank 0 has the weights, and take each bucket of
tensors that is announced to them. Used by trainer, activities and the engines' clients.
"""

from dataclasses import dataclass

BUCKET_BYTES = 512 << 20
"""Bytes of one announcement, on the rank that sends and on each engine that takes it; one weight
that is larger goes alone."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """A process group that a rank of the trainer opened, as its rank 0."""

    group: str
    host: str
    port: int
    backend: str
    """"nccl" or "gloo"."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors that a rank broadcasts next in its group, one tensor after the other."""

    group: str
    names: tuple[str, ...]
    """As a Hugging Face directory has them."""
    dtypes: tuple[str, ...]
    """"float32", "bfloat16"."""
    shapes: tuple[tuple[int, ...], ...]
