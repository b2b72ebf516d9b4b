"""A checkpoint by Megatron's dist_checkpointing: every rank writes its share, and any other layout
of ranks can load it.

Model and optimizer are stored in pieces that do not depend on the parallel sizes, also the shares
of the distributed optimizer. Loading it needs an Adam with Transformer Engine's state (0.16.1).
"""

from pathlib import Path
from typing import Any

from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.serialization import get_default_load_sharded_strategy
from megatron.core.dist_checkpointing.strategies.fully_parallel import (
    FullyParallelLoadStrategyWrapper,
    FullyParallelSaveStrategyWrapper,
)
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

from trainer.checkpoint import SHARDS
from trainer.engines.protocol import EnterPhase, StepOptimizer
from trainer.mcore_optimizer import McoreOptimizer
from trainer.model import PolicyModel


class ShardedFiles:
    def __init__(self, model: PolicyModel) -> None:
        self._model = model

    def save(self, directory: Path, phase: str | None, optimizer: StepOptimizer | None) -> None:
        folder = directory / SHARDS
        folder.mkdir(exist_ok=True)
        strategy = FullyParallelSaveStrategyWrapper(
            TorchDistSaveShardedStrategy("torch_dist", 1), _copies()
        )
        state = self._state(optimizer, is_loading=False) | {"phase": phase}
        dist_checkpointing.save(state, str(folder), sharded_strategy=strategy)

    def load(self, directory: Path, enter: EnterPhase) -> None:
        folder = str(directory / SHARDS)
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


def _copies() -> Any:
    """The ranks that hold the same part of the model."""
    return parallel_state.get_data_parallel_group(with_context_parallel=True)
