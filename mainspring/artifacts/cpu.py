"""Features of this machine's processor that decide the bits of a float32 result.

Read from the kernel, without torch. Used for stamps and for the environment of engine and trainer
processes.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
AVX512_FLAGS = frozenset({"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"})
"""Flags that MKL and ATen ask for before they use AVX-512."""
AVX2_FLAGS = frozenset({"avx2", "fma"})


@dataclass(frozen=True, slots=True)
class Cpu:
    vendor: str
    """As the processor names it, such as "GenuineIntel"; "" where the kernel does not tell."""
    flags: frozenset[str]

    @property
    def has_avx512(self) -> bool:
        return self.flags >= AVX512_FLAGS

    @property
    def word(self) -> str:
        """Vendor and widest instructions in one word: libraries choose their kernels by both."""
        widest = "avx512" if self.has_avx512 else "avx2" if self.flags >= AVX2_FLAGS else "basic"
        return f"{self.vendor or 'unknown'}-{widest}"


@cache
def this_cpu() -> Cpu:
    """Cores of one machine are taken to be alike: the first one tells."""
    fields: dict[str, str] = {}
    for line in CPUINFO.read_text().splitlines() if CPUINFO.exists() else ():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    return Cpu(fields.get("vendor_id", ""), frozenset(fields.get("flags", "").split()))
