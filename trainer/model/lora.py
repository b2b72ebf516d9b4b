"""Low-rank adapters (LoRA, Hu et al., arXiv 2106.09685) on the matrices of a policy.

A matrix W becomes W + scale * B A, with W frozen; A is random and B is zero at first. The sum is
made in each forward pass, before the layer uses it: so the layer is Megatron's own, what is trained
has the bits of what is exported with the sum made, and an adapter costs time for its sum, not for
each token. Invariants: ranks that hold the same layer make the same A, from seed and name; nothing
but A and B has a gradient. Imported by `trainer.model.policy_model`, `trainer.model.weights`, and
`trainer.model.adapters`.
"""

import hashlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from mainspring.config.training.lora import LoraConfig, LoraTargets

ATTENTION = ("self_attention.linear_qkv", "self_attention.linear_proj")
MLP = ("mlp.linear_fc1", "mlp.linear_fc2")
_INNER = ".parametrizations.weight."
_FROZEN = f"{_INNER}original"


class Adapter(nn.Module):
    def __init__(self, weight: Tensor, lora: LoraConfig, generator: torch.Generator) -> None:
        super().__init__()
        rows, columns = weight.shape
        bound = (3.0 / columns) ** 0.5  # uniform of variance 1 / columns, as PEFT has it
        first = torch.rand(lora.rank, columns, generator=generator) * (2 * bound) - bound
        self.a = nn.Parameter(first.to(weight.device, weight.dtype))
        self.b = nn.Parameter(weight.new_zeros(rows, lora.rank))
        self.scale = lora.scale

    def forward(self, weight: Tensor) -> Tensor:
        return torch.addmm(weight, self.b, self.a, alpha=self.scale)


def add_adapters(model: nn.Module, lora: LoraConfig, seed: int, first_layer: int) -> None:
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
        generator = torch.Generator().manual_seed(
            int.from_bytes(hashlib.sha256(key.encode()).digest()[:7], "big")
        )
        weight: Any = module.weight
        adapter = Adapter(weight.detach(), lora, generator)
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
