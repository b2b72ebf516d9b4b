"""A call with its tokens as arrays: what a sample is made of, without the text that people read.

Invariant: the arrays hold the bits that were stored, as views that nothing writes to; no token is a
Python number on the way from the store to a sample. Made by `infra.db.training.batches`; `tree` and
`samples` take these and recorded calls alike, by the protocol `TokenCall`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mainspring.trajectories.turns import VersionSpan


class TokenCall(Protocol):
    """The tokens of a call and its place in the tree, as `Call` describes them."""

    @property
    def number(self) -> int: ...
    @property
    def parent(self) -> int | None: ...
    @property
    def prompt_start(self) -> int: ...
    @property
    def prompt_ids(self) -> Sequence[int] | NDArray[np.int32]: ...
    @property
    def completion_ids(self) -> Sequence[int] | NDArray[np.int32]: ...
    @property
    def logprobs(self) -> Sequence[float] | NDArray[np.float32]: ...
    @property
    def spans(self) -> tuple[VersionSpan, ...]: ...
    @property
    def end(self) -> int: ...


@dataclass(frozen=True, slots=True, eq=False)
class PackedCall:
    number: int
    parent: int | None
    prompt_start: int
    prompt_ids: NDArray[np.int32]
    """[T_new]"""
    completion_ids: NDArray[np.int32]
    """[T_out]"""
    logprobs: NDArray[np.float32]
    """[T_out] as served."""
    spans: tuple[VersionSpan, ...]

    @property
    def end(self) -> int:
        return self.prompt_start + len(self.prompt_ids) + len(self.completion_ids)

    def __eq__(self, other: object) -> bool:
        """Bit for bit; arrays have no answer of their own."""
        return isinstance(other, PackedCall) and self._bits() == other._bits()

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def _bits(self) -> tuple[object, ...]:
        arrays = (self.prompt_ids, self.completion_ids, self.logprobs)
        place = (self.number, self.parent, self.prompt_start, self.spans)
        return (*place, *(values.tobytes() for values in arrays))
