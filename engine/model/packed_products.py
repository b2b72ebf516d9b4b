"""The products of a served model on a CPU, over weights in the order in which oneDNN reads them.

For the few rows of a decoding step that is half the time of torch's own product, whose library
puts a weight into order at each call. Invariants: the model's own weights stay as they are, for
updates and digests, so a packed one is a copy, made again after each update; a copy is made only
where the memory has room for all. Another order of sums gives other bits: a reproducible engine
does without. Imported by `served_model`.
"""

from functools import partial
from typing import Any

import psutil
import structlog
import torch
from torch import Tensor, nn

NUM_ROWS = 16
"""Rows for which the order is chosen; it serves any number of them."""
MEMORY_SHARE = 0.3
"""Share of the free memory that the copies may take: slots need memory, too."""
_log = structlog.get_logger(__name__)


class PackedProducts:
    def __init__(self, model: nn.Module) -> None:
        self._layers = [each for each in model.modules() if type(each) is nn.Linear]
        num_bytes = sum(each.weight.nbytes for each in self._layers)
        self.is_used = (
            torch.backends.mkldnn.is_available()
            and all(_is_plain(each.weight) for each in self._layers)
            and num_bytes < MEMORY_SHARE * psutil.virtual_memory().available
        )
        if not self.is_used:
            _log.info("weights are not packed", gib=round(num_bytes / 2**30, 1))

    @torch.no_grad()
    def pack(self) -> None:
        """Take the model's weights of now."""
        if not self.is_used:
            return
        onednn: Any = torch.ops.mkldnn
        layer: Any
        for layer in self._layers:
            packed = onednn._reorder_linear_weight(layer.weight.detach(), NUM_ROWS)
            layer.forward = partial(_product, packed, layer.bias)

    def drop(self) -> None:
        """Forget them, with their memory: layers compute with their own weights again."""
        for layer in self._layers:
            layer.__dict__.pop("forward", None)


def _is_plain(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype is torch.float32


def _product(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    """x [.., K] -> [.., N]."""
    onednn: Any = torch.ops.mkldnn
    return onednn._linear_pointwise(x, weight, bias, "none", [], "")
