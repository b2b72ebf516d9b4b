"""Settings that make a row's bits independent of the rows beside it, for engine and trainer.

Two things of a CPU's float32 results depend on company: MKL chooses another kernel for another
number of rows, and attention adds its keys in blocks, so that its sum depends on the length to
which keys are padded. Engine (`engine.model.padding`) and trainer pad both: served log-probs are
then equal to recomputed ones in all bits. Pure but for the environment; imported by
engine, trainer and the commands that start them.
"""

import os
from collections.abc import Mapping

from mainspring.artifacts.cpu import Cpu, this_cpu

KEY_BLOCK = 512
"""Keys that torch's CPU attention takes at once: whole blocks are added in the same order, however
many masked ones are behind."""
ROW_BLOCK = 16
"""Rows of a product, or queries of attention: no CPU library was seen to choose another kernel for
float32 between more rows than these. The engine tests it when it starts
(`engine.model.self_test`)."""
MKL_VARIABLE = "MKL_CBWR"
"""Read by MKL at its first call: it must be in the environment before torch is imported."""


def whole_blocks(length: int, block: int) -> int:
    """`length` rounded up to a multiple of `block`."""
    return -(-length // block) * block


def mkl_branch(cpu: Cpu) -> str:
    """One kernel for every number of rows and threads, the fastest that the CPU has. MKL ignores
    the choice on processors that are not Intel's."""
    return "AVX512,STRICT" if cpu.has_avx512 else "AVX2,STRICT"


def environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """For a process whose bits must not depend on company. A value that is set already stands."""
    return {MKL_VARIABLE: environ.get(MKL_VARIABLE) or mkl_branch(this_cpu())}
