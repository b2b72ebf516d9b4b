"""Sends a rank's weights to policy engines in buckets of bounded size, over a process group.

The group is what SGLang's `init_weights_update_group` makes on the other side: rank 0 is here, its
store too. Each rank that writes files of an export sends the same weights, in the dtype of the
export, over a group of its own. Invariants: all ranks make the same calls; what fails leaves the
rank's weights and its own groups as they were, and the group is closed.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mainspring.training.sending import Bucket, Meeting
from mainspring.training.training_faults import SendingFailed
from trainer.engines.protocol import ShardWeights
from trainer.model.convert import StateDict
from trainer.model.processes import Processes, open_store

REMEDY = "the engines load the version from its files; see the logs of engines and trainer"


class WeightSender:
    def __init__(self, weights: ShardWeights, processes: Processes) -> None:
        self._weights = weights
        self._on_cuda = processes.device.type == "cuda"
        self._store: Any = None
        self._name = ""
        self._group: Any = None
        self._size = 0
        """Size of the group: this rank and those of the engines."""
        self._left: Iterator[tuple[int, StateDict]] = iter(())
        self._bucket: list[Tensor] = []

    def open(self, host: str, name: str, num_engine_ranks: int) -> Meeting | None:
        """Where the engines' ranks find this one; None on a rank that has nothing to send."""
        self.close()
        self._left = self._weights.gathered()
        if not self._weights.writes:
            return None
        self._name = f"{name}-{dist.get_rank()}"
        self._store = open_store(host, num_engine_ranks + 1)
        self._size = num_engine_ranks + 1
        backend = "nccl" if self._on_cuda else "gloo"
        return Meeting(self._name, host, self._store.port, backend)

    def meet(self, timeout_s: float) -> None:
        """Wait for the engines. Raises SendingFailed when they do not come."""
        if self._store is None:
            return
        # As torch names the keys of a group in its store: both sides must have the same.
        device = "cuda" if self._on_cuda else "cpu"
        groups: Any = dist  # the class for NCCL exists where torch has CUDA
        store = groups.PrefixStore(self._name, self._store)
        store = groups.PrefixStore(f"{device}/", groups.PrefixStore(f"{self._name}/", store))
        timeout = timedelta(seconds=timeout_s)
        try:
            if self._on_cuda:
                options = groups.ProcessGroupNCCL.Options()
                options._timeout = timeout
                self._group = groups.ProcessGroupNCCL(store, 0, self._size, options)
            else:
                self._group = groups.ProcessGroupGloo(store, 0, self._size, timeout=timeout)
        except RuntimeError as error:
            self.close()
            raise SendingFailed(
                f"not all of {self._size - 1} engine ranks joined the process group of the trainer "
                f"within {timeout_s:.0f} s: {str(error).splitlines()[0]}",
                remedy=f"can engines reach the trainer's host? {REMEDY}",
            ) from error

    def gather(self, max_bytes: int) -> Bucket | None:
        """Collect the next bucket to send; None when this rank has sent all."""
        weights_sent: StateDict = {}
        num_bytes = 0
        for size, weights in self._left:
            weights_sent |= weights
            num_bytes += size
            if num_bytes >= max_bytes:
                break
        self._bucket = [tensor.detach().contiguous() for tensor in weights_sent.values()]
        if not weights_sent:
            return None
        return Bucket(
            self._name,
            tuple(weights_sent),
            tuple(str(tensor.dtype).removeprefix("torch.") for tensor in self._bucket),
            tuple(tuple(tensor.shape) for tensor in self._bucket),
        )

    def send(self) -> None:
        """Send what was gathered. Raises SendingFailed when an engine is lost."""
        if self._group is None:
            return
        failure = self._broadcast()
        self._bucket = []
        if failure:
            self.close()
            raise SendingFailed(
                f"weights could not be sent to the engines: {failure}", remedy=REMEDY
            )

    def _broadcast(self) -> str | None:
        """Why it failed. Nothing that fails is kept, as it would keep the group's connections, and
        the other engines wait as long as these are open."""
        try:
            for work in [self._group.broadcast(tensor, 0) for tensor in self._bucket]:
                work.wait()
            if self._on_cuda:  # NCCL's waits order streams alone
                torch.cuda.synchronize()
        except RuntimeError as error:
            return str(error).splitlines()[0]
        return None

    def close(self) -> None:
        """End the group, also one whose engines are gone."""
        group, self._group = self._group, None
        if group is not None and self._on_cuda:
            group.abort()
        self._store = None
        self._left, self._bucket = iter(()), []
