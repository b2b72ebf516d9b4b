"""New weights that arrive over process groups, as SGLang's begin, update and end have them.

They are kept beside the served weights until all have come, so that an update that ends half-way
leaves the served weights as they were. Invariants: the calls that wait for a peer run in threads,
one at a time, never on the engine thread; a group that fails is left. Used by the routes beside it.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mainspring.errors import EngineError

WAIT_S = 60.0
"""For the others of a group, and for each of its transfers."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class WeightsNotReceived(EngineError):
    """A group did not form, or its sender is gone."""


class ReceivedWeights:
    def __init__(self) -> None:
        self._groups: dict[str, Any] = {}
        self._tensors: dict[str, Tensor] | None = None
        """None: no update is open."""

    @property
    def is_open(self) -> bool:
        return self._tensors is not None

    def join(self, name: str, host: str, port: int, rank: int, size: int) -> None:
        """Enter a group that its rank 0 opens there. Raises WeightsNotReceived."""
        # The keys in the store are those of torch's own `init_process_group` under SGLang.
        groups: Any = dist
        wait = timedelta(seconds=WAIT_S)
        try:
            store = groups.TCPStore(host, port, size, is_master=False, timeout=wait)
            store = groups.PrefixStore(f"{name}/", groups.PrefixStore(name, store))
            store = groups.PrefixStore("cpu/", store)
            self._groups[name] = groups.ProcessGroupGloo(store, rank, size, timeout=wait)
        except RuntimeError as error:
            raise _failed(f"group {name} at {host}:{port} did not form", error) from error

    def leave(self, name: str) -> bool:
        """False: there is no such group."""
        return self._groups.pop(name, None) is not None

    def begin(self) -> None:
        self._tensors = {}

    def receive(
        self, group: str, names: Sequence[str], dtypes: Sequence[str], shapes: Sequence[list[int]]
    ) -> None:
        """One bucket. Raises WeightsNotReceived, and then the update is over."""
        assert self._tensors is not None
        try:
            tensors = {
                name: torch.empty(shape, dtype=DTYPES[dtype])
                for name, dtype, shape in zip(names, dtypes, shapes, strict=True)
            }
            joined = self._groups[group]
            for work in [joined.broadcast(tensor, 0) for tensor in tensors.values()]:
                work.wait()
        except (RuntimeError, KeyError, ValueError) as error:
            self.drop()
            raise _failed(f"weights from group {group} did not arrive", error) from error
        self._tensors |= tensors

    def take(self) -> dict[str, Tensor]:
        """All that has arrived; the update is over."""
        assert self._tensors is not None
        tensors, self._tensors = self._tensors, None
        return tensors

    def drop(self) -> None:
        """The update is over, and nothing of it is served."""
        self._tensors = None
        self._groups.clear()


def _failed(what: str, error: Exception) -> WeightsNotReceived:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return WeightsNotReceived(f"{what}: {reason}", remedy="the served weights are unchanged")
