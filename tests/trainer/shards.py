"""Whole state dicts between Hugging Face and Megatron-core, from the trainer's one-weight rules."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from transformers import PretrainedConfig

from trainer.model.convert import from_hf, to_hf


def hf_to_mcore(
    state: Mapping[str, Tensor],
    hf: PretrainedConfig,
    names: Sequence[str],
    *,
    tp_rank: int = 0,
    tp_size: int = 1,
) -> dict[str, Tensor]:
    """The weights `names` of one rank's shard, by their global names."""
    return {name: from_hf(name, state, hf, tp_rank=tp_rank, tp_size=tp_size) for name in names}


def mcore_to_hf(shards: Sequence[Mapping[str, Tensor]], hf: PretrainedConfig) -> dict[str, Tensor]:
    """Of one pipeline stage that holds all layers, from the shards of all its ranks."""
    found: dict[str, Tensor] = {}
    for name in shards[0]:
        found |= to_hf(name, [shard[name] for shard in shards], hf)
    return found


def load(model: torch.nn.Module, state: Mapping[str, Tensor], hf: PretrainedConfig) -> None:
    names = [name for name, _ in model.named_parameters()]
    model.load_state_dict(hf_to_mcore(state, hf, names), strict=False)


def fused_experts_as_files(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """transformers holds the experts of a layer in two tensors and writes one for each of them."""
    found: dict[str, Tensor] = {}
    for name, value in state.items():
        if name.endswith("experts.gate_up_proj"):
            for number, both in enumerate(value):
                place = name.removesuffix("gate_up_proj") + str(number)
                gate, up = both.chunk(2)
                found |= {f"{place}.gate_proj.weight": gate, f"{place}.up_proj.weight": up}
        elif name.endswith("experts.down_proj"):
            for number, down in enumerate(value):
                found[f"{name.removesuffix('down_proj')}{number}.down_proj.weight"] = down
        else:
            found[name] = value
    return found
