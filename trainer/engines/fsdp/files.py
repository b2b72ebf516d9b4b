"""A checkpoint by torch.distributed.checkpoint: every rank writes its share, and any number of
ranks loads it.

Keys are names of parameters, in the model and in the optimizer. Written in the background, it is as
of the call that began it: torch copies what it writes before it returns, and a thread writes the
copy over a process group of its own, since the thread's collectives would meet those of a step.
Imported by the engines of policies and of critics.
"""

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from mainspring.errors import ModelError
from trainer.engines.checkpoint import SHARDS, Sharding
from trainer.engines.fsdp.weights import FsdpWeights
from trainer.engines.protocol import EnterPhase, StepOptimizer

_PHASE = "phase"


class FsdpFiles:
    sharding = Sharding.TORCH

    def __init__(self, weights: FsdpWeights, folder: str = SHARDS) -> None:
        """`folder`: name of theirs in a checkpoint."""
        self._weights = weights
        self._folder = folder
        self._group: Any = None
        self._writing: Future[Any] | None = None

    def save(self, directory: Path, phase: str | None, optimizer: StepOptimizer | None) -> None:
        save(self._state(phase, optimizer), checkpoint_id=directory / self._folder)

    def begin_save(
        self, directory: Path, phase: str | None, optimizer: StepOptimizer | None
    ) -> None:
        assert self._writing is None, "a checkpoint is being written"
        if self._group is None:
            self._group = dist.new_group(backend="gloo")
        writing = async_save(
            self._state(phase, optimizer),
            checkpoint_id=directory / self._folder,
            process_group=self._group,
        )
        assert isinstance(writing, Future)
        self._writing = writing

    def is_saved(self, *, wait: bool) -> bool:
        if self._writing is None:
            return True
        if not wait and not self._writing.done():
            return False
        self._writing.result()
        self._writing = None
        return True

    @torch.no_grad()
    def load(self, directory: Path, enter: EnterPhase) -> None:
        """Raises ModelError for the shards of another model."""
        try:
            self._load(directory / self._folder, enter)
        except CheckpointException as error:  # torch's, which is no Exception
            [(problem, _), *_] = error.failures.values()
            raise ModelError(
                f"checkpoint {directory}: {self._folder}: {problem}",
                remedy="load it with the model that it was saved with",
            ) from None

    def _load(self, folder: Path, enter: EnterPhase) -> None:
        found: dict[str, Any] = {_PHASE: ""}
        load(found, checkpoint_id=folder)
        phase: str = found[_PHASE]
        optimizer = enter(phase) if phase else None
        state = self._state(phase, optimizer)
        load(state, checkpoint_id=folder)
        if optimizer is not None:
            optimizer.load_state_dict(state["optimizer"])

    def _state(self, phase: str | None, optimizer: StepOptimizer | None) -> dict[str, Any]:
        """Tensors that torch writes, and that it loads into, in place."""
        whole = self._weights.parameters() | self._weights.buffers()
        state: dict[str, Any] = {
            "model": {name: weight.detach() for name, weight in whole.items()},
            _PHASE: phase or "",
        }
        if optimizer is not None:
            state["optimizer"] = optimizer.state_dict()
        return state
