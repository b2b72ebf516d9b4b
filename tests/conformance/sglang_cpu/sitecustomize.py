"""Lets SGLang's Python import torchvision beside a torch for CPUs.

The torchvision of the package index is a build for GPUs, whose library does not load there; its own
Python then misses two operators, which are declared here. Loaded by the interpreter, when this
folder is on PYTHONPATH.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


class DeclareOperators(importlib.abc.MetaPathFinder):
    """Before torchvision is found, once."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            import torch

            for operator in ("nms", "qnms"):
                torch.library.define(f"torchvision::{operator}", SCHEMA)
        return None


sys.meta_path.insert(0, DeclareOperators())
