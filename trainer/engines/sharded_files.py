"""A checkpoint by Megatron's dist_checkpointing: every rank writes its share, and any other layout
of ranks can load it.

Model and optimizer are stored in pieces that do not depend on the parallel sizes, also the shares
of the distributed optimizer. Loading it needs an Adam with Transformer Engine's state (0.16.1).
Written in the background, it is as of the call that began it: Megatron copies what is on a GPU, and
a forked process writes. No process of a writer outlives its rank.
"""

import multiprocessing
from functools import partial
from multiprocessing.managers import SyncManager
from pathlib import Path
from typing import Any

from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.serialization import get_default_load_sharded_strategy
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue, AsyncRequest
from megatron.core.dist_checkpointing.strategies.fully_parallel import (
    FullyParallelLoadStrategyWrapper,
    FullyParallelSaveStrategyWrapper,
)
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from megatron.core.transformer.mlp import apply_swiglu_sharded_factory
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint

from trainer.engines.checkpoint import SHARDS, Sharding
from trainer.engines.mcore_optimizer import McoreOptimizer
from trainer.engines.parent_death import end_with_parent, ended_with_parent
from trainer.engines.protocol import EnterPhase, StepOptimizer
from trainer.model.convert import GATE_UP
from trainer.model.lora import adapters, shard_dim
from trainer.model.policy_model import PolicyModel


class ShardedFiles:
    sharding = Sharding.RESHARDABLE

    def __init__(self, model: PolicyModel, folder: str = SHARDS) -> None:
        """`folder`: its name within a checkpoint's directory."""
        self._model = model
        for name in adapters(model):
            matrix = name.removesuffix(".weight")
            module: Any = model.get_submodule(matrix)
            module.sharded_state_dict = partial(_adapted_state, module, matrix)
        self._folder = folder
        self._calls = AsyncCallsQueue()

    def save(self, directory: Path, phase: str | None, optimizer: StepOptimizer | None) -> None:
        self._save(directory, phase, optimizer, in_background=False)

    def begin_save(
        self, directory: Path, phase: str | None, optimizer: StepOptimizer | None
    ) -> None:
        request = self._save(directory, phase, optimizer, in_background=True)
        assert request is not None
        if request.async_fn is not None:
            request = request._replace(async_fn=partial(ended_with_parent, request.async_fn))
        self._calls.schedule_async_request(request)

    def is_saved(self, *, wait: bool) -> bool:
        self._calls.maybe_finalize_async_calls(blocking=wait)
        return self._calls.get_num_unfinalized_calls() == 0

    def _save(
        self,
        directory: Path,
        phase: str | None,
        optimizer: StepOptimizer | None,
        *,
        in_background: bool,
    ) -> AsyncRequest | None:
        folder = directory / self._folder
        folder.mkdir(exist_ok=True)
        _start_results()
        strategy = FullyParallelSaveStrategyWrapper(
            TorchDistSaveShardedStrategy("torch_dist", 1), _copies()
        )
        state = self._state(optimizer, is_loading=False) | {"phase": phase}
        return dist_checkpointing.save(
            state, str(folder), sharded_strategy=strategy, async_sharded_save=in_background
        )

    def load(self, directory: Path, enter: EnterPhase) -> None:
        folder = str(directory / self._folder)
        phase: Any = dist_checkpointing.load_common_state_dict(folder)["phase"]
        optimizer = enter(phase) if phase is not None else None
        strategy = FullyParallelLoadStrategyWrapper(
            get_default_load_sharded_strategy(folder), _copies()
        )
        state: Any = dist_checkpointing.load(
            self._state(optimizer, is_loading=True), folder, sharded_strategy=strategy
        )
        self._model.load_state_dict(state["model"], strict=False)
        if optimizer is not None:
            optimizer.load_state_dict(state["optimizer"])

    def _state(self, optimizer: StepOptimizer | None, *, is_loading: bool) -> dict[str, Any]:
        metadata = {
            # The default, one flat space, is refused by 0.16.1 itself.
            "distrib_optim_sharding_type": "fully_reshardable",
            "distrib_optim_fully_reshardable_mem_efficient": False,
            "dp_cp_group": _copies(),
        }
        model = self._model.sharded_state_dict(metadata=metadata)
        state: dict[str, Any] = {"model": model}
        if isinstance(optimizer, McoreOptimizer):
            state["optimizer"] = optimizer.inner.sharded_state_dict(
                model, is_loading=is_loading, metadata=metadata
            )
        return state


def _adapted_state(
    module: Any, matrix: str, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None
) -> dict[str, Any]:
    """Megatron's own cuts nothing but a `weight`, which an adapted linear layer `matrix` does not
    have by this name."""
    sharing: Any = parallel_state.get_tensor_model_parallel_group()
    state = module.state_dict(prefix="", keep_vars=True)
    dims = {name: shard_dim(f"{matrix}.{name}") for name in state}
    cut = {name: dim for name, dim in dims.items() if dim is not None}
    made: dict[str, Any] = make_sharded_tensors_for_checkpoint(
        state,
        prefix,
        cut,
        sharded_offsets,
        tp_group=sharing,
        dp_cp_group=metadata["dp_cp_group"],
    )
    if matrix.endswith(GATE_UP):  # of each rank [gate; up]
        for name in cut:
            made[prefix + name] = apply_swiglu_sharded_factory(made[prefix + name], sharded_offsets)
    return made


def _copies() -> Any:
    """The ranks that hold the same part of the model."""
    return parallel_state.get_data_parallel_group(with_context_parallel=True)


def _start_results() -> None:
    """The process through which writers tell what they have written. Megatron would start it, and
    it would outlive a rank that is killed."""
    if filesystem_async._results_queue is None:
        manager = SyncManager(ctx=multiprocessing.get_context("spawn"))
        manager.start(end_with_parent)
        filesystem_async._results_queue = manager.Queue()
