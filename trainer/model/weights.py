"""The weights of one rank's shard: in from a Hugging Face directory, out as one.

Invariants: of a model on disk a rank holds the parts of one weight at a time; what has no place, or
another shape, is refused by name. All ranks make the same calls; in an export the first
tensor-parallel rank of each pipeline stage writes its stage's files, copies write nothing.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PretrainedConfig

from mainspring.artifacts import adapter_files
from mainspring.config.training.lora import LoraConfig
from mainspring.errors import ModelError
from trainer.model.adapters import in_hf_names, write
from trainer.model.convert import (
    HF_OUTPUT,
    StateDict,
    from_hf,
    global_name,
    hf_names,
    is_expert,
    shard_dim,
    to_hf,
    unplaced,
)
from trainer.model.hf_directory import HfReader, HfWriter, dtype_of
from trainer.model.lora import adapters, merged, stored_weights
from trainer.model.policy_model import PolicyModel
from trainer.model.processes import Processes

T = TypeVar("T")


def first_layer(model: PolicyModel, processes: Processes) -> int:
    """First layer of this rank's pipeline stage, numbered over all stages."""
    return processes.pp_group.rank() * len(model.decoder.layers)


class Weights:
    def __init__(
        self,
        model: PolicyModel,
        hf: PretrainedConfig,
        processes: Processes,
        model_dir: Path,
        lora: LoraConfig | None = None,
    ) -> None:
        """`model_dir`: where the config and tokenizer of every export come from; `lora`: of the
        adapters that `model` has."""
        self._lora = lora
        self._model = model
        self._hf = hf
        self._processes = processes
        self._model_dir = model_dir
        self._dtype = dtype_of(model_dir)
        self._first_layer = first_layer(model, processes)
        self._first_expert = processes.expert_rank * (
            (model.config.num_moe_experts or 0) // model.config.expert_model_parallel_size
        )

    def named(self) -> dict[str, Tensor]:
        """All that the shard holds, adapters apart from the matrices that they change."""
        return {name: parameter.detach() for name, parameter in self._model.named_parameters()}

    def stored(self) -> dict[str, Tensor]:
        """Those that a model directory has: of an adapted matrix the one beneath."""
        return stored_weights(self._model)

    def take(self, state: dict[str, Tensor]) -> None:
        """Raises ModelError when `state` is not this shard's."""
        own = self.named()
        missing, unexpected = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
        if missing or unexpected:
            raise ModelError(
                f"model {self._model_dir}: weights {missing[:3]} missing, {unexpected[:3]} "
                "unexpected"
            )
        for name, weight in own.items():
            self._put(weight, state[name], name)

    def load_hf(self, model_dir: Path) -> None:
        """Adapters add nothing to these weights. Raises ModelError for a directory that does not
        hold this model."""
        reader = HfReader(model_dir)
        placed: set[str] = set()
        for local, weight in stored_weights(self._model).items():
            name = self._global(local)
            parts = {hf_name: reader.read(hf_name) for hf_name in hf_names(name, self._hf)}
            self._put(weight, self._shard(name, parts), name)
            placed.update(parts)
        for adapter in adapters(self._model).values():
            adapter.b.detach().zero_()
        # A tied model's directory may hold its output weight a second time.
        tied = {HF_OUTPUT} if self._hf.tie_word_embeddings else set()
        all_placed = {name for part in self._everywhere(placed) for name in part}
        unplaced(reader.files, all_placed | tied)

    def _shard(self, name: str, parts: dict[str, Tensor]) -> Tensor:
        tp_rank, tp_size = self._processes.tp_rank, self._processes.tp_size
        try:
            return from_hf(name, parts, self._hf, tp_rank=tp_rank, tp_size=tp_size)
        except (RuntimeError, IndexError):
            shapes = {hf_name: list(part.shape) for hf_name, part in parts.items()}
            raise ModelError(
                f"model {self._model_dir}: weights of the shapes {shapes} do not make {name}, as "
                "expected from its config.json",
                remedy="give the weights that belong to its config.json",
            ) from None

    def export_hf(self, directory: Path) -> None:
        """Write the weights as a new Hugging Face directory on a disk that all ranks share; those
        with adapters as the model uses them, and the adapters in a folder of their own in it."""
        first = dist.get_rank() == 0
        writer = HfWriter(directory, self._model_dir, part=dist.get_rank())
        if first:
            writer.begin()
        dist.barrier()
        for _, weights in self.gathered():
            writer.add(weights)
        writer.flush()
        files = self._everywhere(writer.files)
        if first:
            writer.finish({name: file for part in files for name, file in part.items()})
        if self._lora is not None and self._lora.rank:
            self._export_adapters(directory / adapter_files.DIRECTORY, self._lora)

    def gathered(self) -> Iterator[tuple[int, StateDict]]:
        """Weight after weight as an export has it, on the rank that writes it, elsewhere nothing;
        each with its size, which is the same on all ranks of its pipeline stage."""
        for local, weight in stored_weights(self._model).items():
            name = self._global(local)
            merged_weight = merged(self._model, local, weight)
            shards = self._gathered(name, merged_weight)
            hf_weights = {} if shards is None else to_hf(name, shards, self._hf)
            num_bytes = merged_weight.numel() * self._dtype.itemsize * self._processes.tp_size
            yield num_bytes, {hf_name: part.to(self._dtype) for hf_name, part in hf_weights.items()}

    @property
    def writes(self) -> bool:
        """Whether this rank writes weights of an export."""
        first = self._processes.is_first_copy and self._processes.tp_rank == 0
        has_experts = any(is_expert(self._global(name)) for name in stored_weights(self._model))
        return first or (has_experts and self._processes.is_first_copy_of_experts)

    def _export_adapters(self, directory: Path, lora: LoraConfig) -> None:
        own: StateDict = {}
        if self._processes.is_first_copy:
            for local, adapter in adapters(self._model).items():
                a = self._parts(adapter.a.detach(), adapter.dim == 1)
                b = self._parts(adapter.b.detach(), adapter.dim == 0)
                if a is not None and b is not None:
                    own |= in_hf_names(self._global(local), torch.cat(a, dim=1), b, self._hf)
        everyones = {name: part for parts in self._everywhere(own) for name, part in parts.items()}
        if dist.get_rank() == 0:
            write(directory, everyones, lora, self._model_dir)

    def _gathered(self, name: str, weight: Tensor) -> list[Tensor] | None:
        """All tensor-parallel ranks' parts of a weight, on the rank that writes it."""
        if is_expert(name):
            return [weight] if self._processes.is_first_copy_of_experts else None
        if not self._processes.is_first_copy:
            return None
        return self._parts(weight, shard_dim(name) is not None)

    def _parts(self, weight: Tensor, is_cut: bool) -> list[Tensor] | None:
        """The same for one copy of the model."""
        group = self._processes.tp_group
        is_writer = group.rank() == 0
        if group.size() == 1 or not is_cut:
            return [weight] if is_writer else None
        parts = [torch.empty_like(weight) for _ in range(group.size())] if is_writer else None
        dist.gather(weight.contiguous(), parts, group=group, group_dst=0)
        return parts

    def _everywhere(self, own: T) -> list[T]:
        objects: list[T | None] = [own] * dist.get_world_size()
        if dist.get_world_size() > 1:
            dist.all_gather_object(objects, own)
        return cast("list[T]", objects)

    def _global(self, name: str) -> str:
        return global_name(name, self._first_layer, self._first_expert)

    def _put(self, weight: Tensor, value: Tensor, name: str) -> None:
        if weight.shape != value.shape:
            raise ModelError(
                f"model {self._model_dir}: weight {name} has the shape {list(value.shape)}, "
                f"expected {list(weight.shape)}",
                remedy="give the weights that belong to its config.json",
            )
        weight.copy_(value)
