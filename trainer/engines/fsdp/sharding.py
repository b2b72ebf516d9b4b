"""A model of a folder, built without its weights and sharded over data-parallel ranks by FSDP2.

Each layer is a unit of its own, the root with embedding and output layer another; a unit's weights
are whole on a rank only while it computes. Invariants: what is trained stays in float32, whatever
the numbers of the computation; gradients are summed over ranks, not averaged; weights are left
uninitialised, `trainer.engines.fsdp.weights` fills them. Of a model that is being built no more
than addresses exist, and one unit of it on a GPU. Imported by the rest of this folder and
by the critic's engine.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.initialization import no_init_weights

from mainspring.algorithms.gap import Dtype
from mainspring.config.training.parallel import ParallelConfig, Recompute
from mainspring.errors import ModelError
from trainer.engines.fsdp.packed_model import PackedBody
from trainer.model.processes import Processes

CHECKPOINTED = "_checkpoint_wrapped_module."
"""Part that torch adds to the names of parameters in a layer that is computed again."""


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a weight, a gradient or a moment."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All ranks' parts together, on every rank, on the device where ranks compute."""
    if not isinstance(tensor, DTensor):
        return tensor
    mesh, own = tensor.device_mesh, tensor.to_local()
    if own.device.type != mesh.device_type:  # kept in the host's memory, and NCCL reaches no CPU
        own = own.to(mesh.device_type)
        shape, stride = tensor.shape, tensor.stride()
        tensor = DTensor.from_local(own, mesh, tensor.placements, shape=shape, stride=stride)
    return tensor.full_tensor()


def build_lm(config: PretrainedConfig, named: str) -> Any:
    """A causal language model of transformers in float32. Raises ModelError."""
    try:
        with no_init_weights():
            lm: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        lm.tie_weights()
    except (ValueError, TypeError, AttributeError, ImportError, RuntimeError) as error:
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(
            f"{named}: transformers makes no causal language model of it: {first[0]}",
            remedy="use a model that AutoModelForCausalLM of the installed transformers knows",
        ) from error
    return lm.float()


def shard(
    root: PackedBody, parallel: ParallelConfig, processes: Processes, named: str
) -> tuple[str, ...]:
    """Shard `root` in its place; returns how the names of the weights of each layer begin. Raises
    ModelError."""
    mesh = DeviceMesh.from_group(processes.dp_group, processes.device.type)
    policy = MixedPrecisionPolicy()
    if parallel.dtype is Dtype.BFLOAT16:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    on_cuda = processes.device.type == "cuda"
    offload = OffloadPolicy()
    if parallel.optimizer_offload:
        offload = CPUOffloadPolicy(pin_memory=on_cuda)
    layers = list(layers_of(root.lm))
    if not layers:
        raise ModelError(
            f"{named}: no list of its layers is found in {type(root.lm).__name__}, so FSDP cannot "
            "shard it",
            remedy="use another model",
        )
    names = {id(module): f"{name}." for name, module in root.lm.named_modules()}
    prefixes = tuple(names[id(layer)] for _, _, layer in layers)
    for holder, name, layer in layers:
        unit = layer
        if parallel.recompute is Recompute.FULL:
            unit = checkpoint_wrapper(layer)
            setattr(holder, name, unit)
        fully_shard(unit, mesh=mesh, mp_policy=policy, offload_policy=offload)
    for unit in root.exact:
        fully_shard(unit, mesh=mesh, offload_policy=offload)
    fully_shard(root, mesh=mesh, mp_policy=policy, offload_policy=offload)
    if processes.dp_size > 1:  # a rank alone would divide its gradients by 1
        for module in root.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                # gloo knows no sum with a factor, and NCCL rounds it in bfloat16.
                module.set_force_sum_reduction_for_comms(True)
    if on_cuda:  # buffers are not sharded
        for module in root.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(processes.device))
    return prefixes


def layers_of(lm: Any) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Modules that the model's class names as indivisible, the outermost ones, each with its holder
    and its name there; else those of a list that is as long as the config tells."""
    kinds: set[str] = set(getattr(lm, "_no_split_modules", None) or ())
    if any(type(module).__name__ in kinds for module in lm.modules()):
        yield from _outermost(lm, kinds)
        return
    num_layers = getattr(lm.config.get_text_config(), "num_hidden_layers", None)
    for module in lm.modules():
        if isinstance(module, nn.ModuleList) and len(module) == num_layers:
            yield from ((module, name, layer) for name, layer in module.named_children())
            return


def _outermost(holder: nn.Module, kinds: set[str]) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    for name, child in list(holder.named_children()):
        if type(child).__name__ in kinds:
            yield holder, name, child
        else:
            yield from _outermost(child, kinds)
