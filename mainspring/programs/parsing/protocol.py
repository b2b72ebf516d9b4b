"""The seam between a model's way of writing tool calls and replies as programs take them.

Invariant: the same arguments give the same reply, and no text raises. Implemented in the files
beside this one, and by functions of your own; chosen by name in `choice`. Pure.
"""

from collections.abc import Sequence
from typing import Protocol

from mainspring.programs.reply import Reply
from mainspring.programs.request import ToolSpec


class Parser(Protocol):
    def __call__(self, text: str, tools: Sequence[ToolSpec], is_cut: bool) -> Reply:
        """`text`: a whole reply, special tokens left out; `is_cut`: it ended at a bound on tokens.
        A call that cannot be read stays text. No call is read for a program that offered no tool:
        it would not know what to do with one."""
        ...
