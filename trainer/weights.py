"""The weights of one rank's shard: in from a Hugging Face directory, out as one.

All ranks make the same calls; data-parallel copies write nothing.
"""

from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core.models.gpt import GPTModel
from torch import Tensor
from transformers import PretrainedConfig

from mainspring.errors import ModelError
from trainer import hf_directory
from trainer.convert import hf_to_mcore, mcore_to_hf
from trainer.processes import Processes


class Weights:
    def __init__(
        self, model: GPTModel, hf: PretrainedConfig, processes: Processes, model_dir: Path
    ) -> None:
        """`model_dir`: where the config and tokenizer of every export come from."""
        self._model = model
        self._hf = hf
        self._processes = processes
        self._model_dir = model_dir

    def named(self) -> dict[str, Tensor]:
        return {name: parameter.detach() for name, parameter in self._model.named_parameters()}

    def take(self, state: dict[str, Tensor]) -> None:
        """Raises ModelError when `state` is not this shard's."""
        result = self._model.load_state_dict(state, strict=False)
        # Transformer Engine's modules list their own extra state, which has no weights.
        missing = [name for name in result.missing_keys if not name.endswith("_extra_state")]
        if missing or result.unexpected_keys:
            raise ModelError(
                f"model {self._model_dir}: weights {missing[:3]} missing, "
                f"{result.unexpected_keys[:3]} unexpected"
            )

    def load_hf(self, model_dir: Path) -> None:
        self.take(
            hf_to_mcore(
                hf_directory.load_weights(model_dir),
                self._hf,
                tp_rank=self._processes.tp_rank,
                tp_size=self._processes.tp_size,
                transformer_engine="decoder.layers.0.input_layernorm.weight" not in self.named(),
            )
        )

    def export_hf(self, directory: Path) -> None:
        """Write the weights as a Hugging Face directory; the first rank of all writes."""
        if self._processes.dp_rank > 0:
            return
        shards: list[dict[str, Tensor]] = [{} for _ in range(self._processes.tp_size)]
        for name, weight in self.named().items():
            parts = [torch.empty_like(weight) for _ in shards]
            dist.all_gather(parts, weight.contiguous(), self._processes.tp_group)
            for shard, part in zip(shards, parts, strict=True):
                shard[name] = part
        if self._processes.tp_rank == 0:
            hf_directory.save_model(directory, mcore_to_hf(shards, self._hf), self._model_dir)
