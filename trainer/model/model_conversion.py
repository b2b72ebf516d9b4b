"""A model between a Hugging Face folder and Megatron's distributed checkpoint (torch_dist).

One process holds the whole model. What is written are the weights alone, without an optimizer, in
the dtype that config.json names; Megatron loads it under any parallel sizes. Invariant: the
destination appears whole, under a name that was free, or not at all. Imported by the command.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from torch.distributed.checkpoint.api import CheckpointException

from mainspring.algorithms.gap import Dtype
from mainspring.config.training.parallel import MCORE, Device, ParallelConfig
from mainspring.errors import ModelError, UsageError
from trainer.model import hf_directory
from trainer.model.policy_model import PolicyModel, build_model
from trainer.model.processes import join
from trainer.model.weights import Weights

METADATA = {"distrib_optim_sharding_type": "fully_reshardable"}


def to_torch_dist(source: Path, destination: Path) -> None:
    """Raises ModelError for a folder that is no model, UsageError for a taken destination. Needs a
    GPU: Megatron-core 0.16.1 asks CUDA to wait before it writes."""
    with _new(destination) as folder:
        model, weights = _empty(source)
        weights.load_hf(source)
        strategy = TorchDistSaveShardedStrategy("torch_dist", 1)
        dist_checkpointing.save(_state(model), str(folder), sharded_strategy=strategy)


def to_hugging_face(source: Path, like: Path, destination: Path) -> None:
    """`like`: a Hugging Face folder with the config and the tokenizer; weights are not needed.
    Raises ModelError for what does not fit it, UsageError for a taken destination."""
    if not (source / "metadata.json").is_file():
        raise ModelError(
            f"checkpoint {source}: no metadata.json",
            remedy="give a folder of Megatron's torch_dist format, such as iter_0000100/",
        )
    with _new(destination) as folder:
        model, weights = _empty(like)
        try:
            state: Any = dist_checkpointing.load(_state(model), str(source))
        except (CheckpointingException, CheckpointException, RuntimeError, KeyError) as error:
            raise ModelError(
                f"checkpoint {source} does not hold the model of {like / 'config.json'}: "
                f"{str(error).strip().splitlines()[-1].rpartition('Exception: ')[2]}",
                remedy="give the Hugging Face folder of the same architecture with --like",
            ) from None
        model.load_state_dict(state["model"], strict=False)
        folder.rmdir()  # an export makes its own
        weights.export_hf(folder)


def _empty(model_dir: Path) -> tuple[PolicyModel, Weights]:
    hf = hf_directory.load_config(model_dir)
    in_bfloat16 = getattr(hf, "dtype", None) is torch.bfloat16
    parallel = ParallelConfig(
        engine=MCORE,
        device=Device.CUDA if torch.cuda.is_available() else Device.CPU,
        dtype=Dtype.BFLOAT16 if in_bfloat16 else Dtype.FLOAT32,
    )
    processes = join(0, parallel)
    model = build_model(hf, parallel, processes)
    return model, Weights(model, hf, processes, model_dir)


def _state(model: PolicyModel) -> dict[str, Any]:
    return {"model": model.sharded_state_dict(metadata=METADATA)}


@contextmanager
def _new(destination: Path) -> Iterator[Path]:
    """A folder beside `destination` that takes its name when the block ends."""
    if destination.exists():
        raise UsageError(
            f"{destination} exists", remedy="give a folder that does not exist, or remove it"
        )
    folder = destination.with_name(f".{destination.name}.tmp-{os.getpid()}")
    folder.mkdir(parents=True)
    try:
        yield folder
        folder.rename(destination)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
