"""Low-rank adapters (LoRA, arXiv 2106.09685) on the linear matrices of any transformers model.

A layer computes W x + scale * B (A x), with W frozen; A is random and B is zero at first. Neither
`trainer.model.lora` nor PEFT is used: the first makes the sum W + scale * B A, which autograd would
keep, whole on every rank, until the backward pass, so that nothing of a model would be sharded; the
second renames every adapted weight, which loading, exports and checkpoints would have to undo. Here
weights keep their names: A and B are a child of their linear module, in the same unit of FSDP.
Invariants: which matrices have adapters is told by the model's modules, and by no table of
families; what is asked for and not there is refused by name, before weights are read; nothing but A
and B has a gradient. Imported by the rest of this folder, and by the checklist of a campaign.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mainspring.algorithms.gap import Dtype
from mainspring.config.training.lora import LoraConfig, LoraTargets
from mainspring.config.training.parallel import ParallelConfig
from mainspring.errors import ModelError
from mainspring.model_folder.config_file import where
from mainspring.model_folder.refusals import FolderUse
from trainer.engines.fsdp.sharding import build_lm, layers_of
from trainer.model import hf_directory
from trainer.model.lora import first_a

CHILD = "mainspring_adapter"
"""Name of the adapter in its linear module; no family has one so."""
ATTENTION = ("attention", "attn")
ROUTERS = ("gate", "router", "shared_expert_gate")
"""Last names of linear modules that choose experts, which no target names."""


class LinearAdapter(nn.Module):
    def __init__(self, linear: nn.Linear, lora: LoraConfig, key: str) -> None:
        super().__init__()
        self.a = nn.Parameter(first_a(lora.rank, linear.in_features, key))
        self.b = nn.Parameter(torch.zeros(linear.out_features, lora.rank))
        self.scale = lora.scale

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(x, self.a), self.b) * self.scale


def is_part(name: str) -> bool:
    """Whether `name` is that of A or B, not of a model's weight."""
    return f".{CHILD}." in name


def is_b(name: str) -> bool:
    return name.endswith(f".{CHILD}.b")


def in_peft_names(parts: dict[str, Tensor]) -> dict[str, Tensor]:
    """All adapters, whole, as PEFT names them for a model of AutoModelForCausalLM."""
    return {
        f"base_model.model.{module}.lora_{part.upper()}.weight": weight.float().cpu().contiguous()
        for name, weight in parts.items()
        for module, _, part in [name.partition(f".{CHILD}.")]
    }


def part_names(weight: str) -> tuple[str, str]:
    """Names of A and B of the matrix `weight`, if it has an adapter."""
    module = f"{weight.removesuffix('.weight')}.{CHILD}"
    return f"{module}.a", f"{module}.b"


def add_adapters(lm: Any, parallel: ParallelConfig, seed: int, named: str) -> None:
    """Freeze `lm`, whose weights are not in place yet, and add an adapter to each target; before it
    is sharded. Frozen weights have the numbers of the computation, since no optimizer moves them.
    Raises ModelError."""
    found = targets(lm, parallel.lora, named)
    for parameter in lm.parameters():
        parameter.requires_grad_(False)
        if parallel.dtype is Dtype.BFLOAT16:
            parameter.data = torch.empty_like(parameter, dtype=torch.bfloat16)
    for name, linear in found.items():
        linear.add_module(CHILD, LinearAdapter(linear, parallel.lora, f"{seed}/{name}"))
        linear.register_forward_hook(_add)


def _add(linear: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return output + linear.get_submodule(CHILD)(inputs[0])


def check_targets(model_dir: Path, lora: LoraConfig) -> None:
    """Raises ModelError where the model of a folder does not have them; reads its config alone."""
    config = hf_directory.load_config(model_dir, FolderUse.ANY_MODEL)
    with torch.device("meta"):
        targets(build_lm(config, where(model_dir)), lora, where(model_dir))


def targets(lm: Any, lora: LoraConfig, named: str) -> dict[str, nn.Linear]:
    """By name, the modules that `lora` adapts. Raises ModelError."""
    kind = f"{named}: trainer.lora.targets = {lora.targets.value!r} of a {lm.config.model_type!r}"
    found, has, stacked = dict[str, nn.Linear](), dict[str, None](), list[str]()
    names = {id(module): name for name, module in lm.named_modules()}
    for _, _, layer in layers_of(lm):
        for name, module, is_attention in _inside(layer):
            own = {n: weight.ndim for n, weight in module.named_parameters(recurse=False)}
            has |= {f"{name} ({type(module).__name__})": None} if own.get("weight", 0) > 1 else {}
            if not isinstance(module, nn.Conv1d):
                stacked += [f"{name}.{n}" for n, num_dims in own.items() if num_dims == 3]
            is_named = is_attention or lora.targets is LoraTargets.ALL
            is_router = name.rpartition(".")[2] in ROUTERS
            if is_named and isinstance(module, nn.Linear) and not is_router:
                found[f"{names[id(layer)]}.{name}"] = module
    if stacked and lora.targets is LoraTargets.ALL:
        raise ModelError(
            f"{kind} model: {stacked[0]} is a stack of matrices, one of each expert, which gets no "
            "adapters",
            remedy="set trainer.lora.targets = 'attention', or train all weights without "
            "[trainer.lora]",
        )
    if not found:
        raise ModelError(
            f"{kind} model name no linear module: its layers have {', '.join(has) or 'none'}",
            remedy="set trainer.lora.targets = 'all' where a layer has one (Linear), or train all "
            "weights without [trainer.lora]",
        )
    _check_untied(lm, found, named)
    return found


def _inside(
    module: nn.Module, prefix: str = "", *, is_attention: bool = False
) -> Iterator[tuple[str, nn.Module, bool]]:
    """All modules within a layer, with their names and whether they belong to attention, as the
    name or the class of a module around them tells."""
    for inner, child in module.named_children():
        words = f"{inner} {type(child).__name__}".lower()
        is_its = is_attention or any(word in words for word in ATTENTION)
        yield prefix + inner, child, is_its
        yield from _inside(child, f"{prefix}{inner}.", is_attention=is_its)


def _check_untied(lm: Any, found: dict[str, nn.Linear], named: str) -> None:
    """One weight of two modules would have two sums."""
    first: dict[int, str] = {}
    for name, module in lm.named_modules(remove_duplicate=False):
        if isinstance(module, nn.Linear | nn.Embedding):
            other = first.setdefault(id(module.weight), name)
            if other != name and {name, other} & found.keys():
                raise ModelError(
                    f"{named}: {other} and {name} are one matrix, which gets no adapter",
                    remedy="train all weights without [trainer.lora]",
                )
