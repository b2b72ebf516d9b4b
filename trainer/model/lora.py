"""Low-rank adapters (LoRA, Hu et al., arXiv 2106.09685) on the matrices of a policy.

A matrix W becomes W + scale * B A, with W frozen; A is random and B is zero at first. The sum is
made in each forward pass, before the layer uses it: so the layer is Megatron's own, what is trained
has the bits of what is exported with the sum made, and an adapter costs time for its sum, not for
each token. Invariants: ranks that hold the same layer make the same A, from seed and name; nothing
but A and B has a gradient. Imported by `trainer.model.policy_model`, `trainer.model.weights`, and
`trainer.model.adapters`.
"""

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from mainspring.config.training.lora import LoraConfig, LoraTargets
from trainer.model import convert
from trainer.model.processes import Processes

ATTENTION = ("self_attention.linear_qkv", "self_attention.linear_proj")
MLP = ("mlp.linear_fc1", "mlp.linear_fc2")
_INNER = ".parametrizations.weight."
_FROZEN = f"{_INNER}original"


def first_a(rank: int, columns: int, key: str) -> Tensor:
    """[rank, columns] A of a new adapter: equal in every process for an equal `key`."""
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:7], "big")
    bound = (3.0 / columns) ** 0.5  # uniform of variance 1 / columns, as PEFT has it
    uniform = torch.rand(rank, columns, generator=torch.Generator().manual_seed(seed))
    return uniform * (2 * bound) - bound


def shard_dim(name: str) -> int | None:
    """As `trainer.model.convert.shard_dim`, for the names of adapted matrices, A and B too."""
    matrix, inner, part = name.partition(_INNER)
    dim = convert.shard_dim(f"{matrix}.weight" if inner else name)
    if not inner or part == "original":
        return dim
    return dim if dim == (1 if part.endswith("a") else 0) else None


class Adapter(nn.Module):
    def __init__(
        self, weight: Tensor, lora: LoraConfig, key: str, dim: int | None, processes: Processes
    ) -> None:
        """`weight`: this rank's part of the matrix, which is cut along `dim`."""
        super().__init__()
        rows, columns = weight.shape
        num_parts = processes.tp_size if dim == 1 else 1
        whole = first_a(lora.rank, columns * num_parts, key)
        first = whole.chunk(num_parts, dim=1)[processes.tp_rank if dim == 1 else 0]
        self.a = nn.Parameter(first.to(weight.device, weight.dtype).contiguous())
        self.b = nn.Parameter(weight.new_zeros(rows, lora.rank))
        self.dim, self.scale = dim, lora.scale
        self._shared: Callable[[Tensor], Tensor] | None = None
        if processes.tp_size > 1:
            # Imported here: the engine `fsdp` does without Megatron.
            from megatron.core import tensor_parallel

            self._shared = tensor_parallel.copy_to_tensor_model_parallel_region
            cut = self.a if dim == 1 else self.b
            tensor_parallel.set_tensor_model_parallel_attributes(cut, True, int(dim == 1), 1)

    def forward(self, weight: Tensor) -> Tensor:
        a, b = self.a, self.b
        if self._shared is not None:
            a, b = (self._shared(a), b) if self.dim == 0 else (a, self._shared(b))
        return torch.addmm(weight, b, a, alpha=self.scale)


def add_adapters(
    model: nn.Module, lora: LoraConfig, seed: int, first_layer: int, processes: Processes
) -> None:
    """Freeze `model` and add an adapter to each target, where the campaign has adapters;
    `first_layer`: of this pipeline stage."""
    if not lora.rank:
        return
    model.requires_grad_(False)
    targets = ATTENTION if lora.targets is LoraTargets.ATTENTION else (*ATTENTION, *MLP)
    for name, module in list(model.named_modules()):
        if not name.endswith(targets):
            continue
        _, _, layer, inner = name.split(".", 3)
        key = f"{seed}/{int(layer) + first_layer}/{inner}"
        weight: Any = module.weight
        dim = convert.shard_dim(f"{name}.weight")
        adapter = Adapter(weight.detach(), lora, key, dim, processes)
        parametrize.register_parametrization(module, "weight", adapter)


def adapters(model: nn.Module) -> dict[str, Adapter]:
    """By the name of their matrix in this rank's model."""
    return {
        name.partition(_INNER)[0] + ".weight": module
        for name, module in model.named_modules()
        if isinstance(module, Adapter)
    }


def stored_weights(model: nn.Module) -> dict[str, Tensor]:
    """Every weight of a model directory, by its name without adapters: W, not the sum."""
    named = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return {
        name.replace(_FROZEN, ".weight"): weight
        for name, weight in named.items()
        if _INNER not in name or name.endswith(_FROZEN)
    }


@torch.no_grad()
def merged(model: nn.Module, name: str, weight: Tensor) -> Tensor:
    """The weight `name` as the model uses it: of an adapted matrix the sum."""
    place, _, inner = name.rpartition(".")
    module: Any = model.get_submodule(place)
    return module.weight if parametrize.is_parametrized(module, inner) else weight
