"""The weights of one rank's shard under FSDP: in from a Hugging Face directory, out as one.

Invariants: of a model on disk a rank holds what is converted together at one time, most often one
weight; names and shapes of an export are the source's. All ranks make the same calls; the first
rank writes. Tensors of the source that the model does not take, such as those of a vision part, are
in every export as they are. Imported by `trainer.engines.fsdp.engine`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from mainspring.artifacts.adapter_files import DIRECTORY
from mainspring.config.training.lora import LoraConfig
from mainspring.errors import ModelError
from trainer.engines.fsdp.adapters import in_peft_names, is_b, part_names
from trainer.engines.fsdp.file_names import FileNames
from trainer.engines.fsdp.sharding import CHECKPOINTED, local, whole
from trainer.model.adapters import write
from trainer.model.convert import StateDict
from trainer.model.hf_directory import HfReader, HfWriter, dtype_of


class FsdpWeights:
    def __init__(self, lm: Any, model_dir: Path, names: FileNames, lora: LoraConfig) -> None:
        """`model_dir`: where the config and tokenizer of every export come from; `names`: of its
        weights; `lora`: of the adapters that `lm` has."""
        self._lora = lora
        self._lm = lm
        self._model_dir = model_dir
        self._names = names
        self._dtype = dtype_of(model_dir)

    def parameters(self) -> dict[str, Tensor]:
        """The shards by name."""
        named = self._lm.named_parameters()
        return {name.replace(CHECKPOINTED, ""): parameter for name, parameter in named}

    def trained(self) -> dict[str, Tensor]:
        """Those that an optimizer moves."""
        return {name: shard for name, shard in self.parameters().items() if shard.requires_grad}

    def buffers(self) -> dict[str, Tensor]:
        """Those that a model directory has."""
        kept = self._lm.state_dict(keep_vars=True).keys()
        named = self._lm.named_buffers()
        return {n.replace(CHECKPOINTED, ""): buffer for n, buffer in named if n in kept}

    def named(self) -> dict[str, Tensor]:
        """All that this rank holds."""
        held = self.parameters() | self.buffers()
        return {name: local(weight.detach()) for name, weight in held.items()}

    @torch.no_grad()
    def take(self, state: dict[str, Tensor]) -> None:
        """Raises ModelError when `state` is not this shard's."""
        own = self.named()
        differ = sorted(own.keys() ^ state.keys())
        differ += [n for n in own if not differ and own[n].shape != state[n].shape]
        if differ:
            raise ModelError(f"model {self._model_dir}: weights {differ[:3]} are not this shard's")
        for name, weight in own.items():
            weight.copy_(state[name])

    @torch.no_grad()
    def load_hf(self, model_dir: Path) -> None:
        """Adapters add nothing to these weights. Raises ModelError for a directory that does not
        hold this model."""
        names = self._names if model_dir == self._model_dir else self._names.of(model_dir)
        own = self.parameters() | self.buffers()
        reader = HfReader(model_dir)
        for name, weight in names.read(reader.read):
            copied = names.first_copy(name)
            if copied is None:
                self._put(own[names.tied.get(name, name)], weight)
            elif not torch.equal(weight, reader.read(copied)):
                raise ModelError(
                    f"model {model_dir}: {name} is not {copied}, and its config.json ties them",
                    remedy="set tie_word_embeddings to false, or save the model again",
                )
        for name, part in own.items():
            if is_b(name):
                local(part).zero_()

    def _put(self, own: Tensor, weight: Tensor) -> None:
        if isinstance(own, DTensor):
            # Every rank reads the files, which their host's memory holds once.
            placed = distribute_tensor(
                weight.to(own.dtype), own.device_mesh, own.placements, src_data_rank=None
            )
            own.to_local().copy_(placed.to_local())
        else:
            own.copy_(weight)

    def export_hf(self, directory: Path) -> None:
        """Write the weights as a new Hugging Face directory on a disk that all ranks share; those
        with adapters as the model uses them, and the adapters in a folder of their own in it."""
        writer = HfWriter(directory, self._model_dir, part=dist.get_rank())
        if self.writes:
            writer.begin()
        dist.barrier()
        for _, weights in self.gathered():
            writer.add(weights, as_given=True)
        if self.writes:
            reader = HfReader(self._model_dir)
            for name in self._names.others:
                writer.add({name: reader.read(name)}, as_given=True)
            writer.flush()
            writer.finish(writer.files)
        if self._lora.rank:
            parts = {name: whole(part.detach()) for name, part in self.trained().items()}
            if self.writes:
                write(directory / DIRECTORY, in_peft_names(parts), self._lora, self._model_dir)

    def gathered(self) -> Iterator[tuple[int, StateDict]]:
        """Weights as an export has them, on the rank that writes, elsewhere nothing; each group
        with its size, which is the same on all ranks."""
        buffers = self.buffers()
        own = self.parameters() | buffers
        for group in self._names.groups:
            parts = {name: own[self._names.tied.get(name, name)].detach() for name in group.targets}
            full = {name: self._used(name, weight, own) for name, weight in parts.items()}
            num_bytes = sum(weight.numel() for weight in full.values()) * self._dtype.itemsize
            if not self.writes:
                yield num_bytes, {}
                continue
            written = self._names.written(group, full)
            is_buffer = group.first in buffers
            dtypes = {n: self._names.dtype(n) if is_buffer else self._dtype for n in written}
            yield num_bytes, {name: w.to(dtypes[name]) for name, w in written.items()}

    def _used(self, name: str, weight: Tensor, own: dict[str, Tensor]) -> Tensor:
        """Whole, as the model uses it: of an adapted matrix the sum."""
        a, b = (own.get(part) for part in part_names(name))
        if a is None or b is None:
            return whole(weight)
        parts = whole(b.detach()), whole(a.detach())
        return torch.addmm(whole(weight).float(), *parts, alpha=self._lora.scale)

    @property
    def writes(self) -> bool:
        """Whether this rank writes weights of an export."""
        return dist.get_rank() == 0
