"""Peak speeds of GPUs by name, from the makers' data sheets.

Invariant: a name that is not in the table, or is of a variant with another peak, has none: nothing
is guessed. Pure; used by plans and by the metric MFU.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

GPU_TFLOPS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "B200": (2250.0, 75.0),
        "H200": (989.0, 67.0),
        "GH200": (989.0, 67.0),
        "H100": (989.0, 67.0),
        "H800": (989.0, 67.0),
        "A100": (312.0, 19.5),
        "A800": (312.0, 19.5),
        "L40S": (362.0, 91.6),
        "RTX 4090": (165.0, 82.6),
        "A10": (125.0, 31.2),
        "L4": (121.0, 30.3),
    }
)
"""Peaks of dense bfloat16 and of float32, in TFLOP/s."""
_OTHERS = ("MIG", "H100 PCIe", "H100 NVL", "H200 NVL", "RTX 4090 D", "Laptop")
"""Slices of a GPU, and variants that are slower than the one in the table."""


def known_gpu(name: str) -> str | None:
    """The GPU of the table that a driver calls `name`, as "NVIDIA H100 80GB HBM3"."""

    def has(words: str) -> bool:
        return re.search(rf"\b{words}\b", name) is not None

    if any(has(gpu) for gpu in _OTHERS):
        return None
    return next((gpu for gpu in GPU_TFLOPS if has(gpu)), None)


def peak_tflops(name: str, *, is_half: bool) -> float | None:
    """`is_half`: of bfloat16; None where it is not known."""
    gpu = known_gpu(name)
    return None if gpu is None else GPU_TFLOPS[gpu][0 if is_half else 1]
