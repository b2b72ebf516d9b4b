"""The transformers model behind the engine: loading, the ragged forward pass, new weights in place.

Weights are fp32. Loading checks everything before the first tensor is touched: a directory that
does not fit leaves the served weights as they are. A reproducible model gives a request the same
bits whatever runs beside it and however its tokens were cut into passes: its passes are padded.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from engine.adapters import Adapters
from engine.attention import IMPLEMENTATION, plan
from engine.padding import NONE, WHOLE, padded
from engine.slots import KvShape, SlotPool
from infra.policy.model_files import check_servable
from infra.policy.weight_files import add_to_digest
from mainspring.errors import ModelError
from mainspring.model_folder.weights import read_weights
from mainspring.stamp import machine_stamp


class PolicyModel:
    def __init__(
        self, directory: Path, context_length: int | None = None, *, is_reproducible: bool = False
    ) -> None:
        """Raises ModelError when the directory cannot be served."""
        check_servable(directory)
        transformers_logging.disable_progress_bar()
        try:
            self.config = AutoConfig.from_pretrained(directory, local_files_only=True)
            self.tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                directory,
                dtype=torch.float32,
                local_files_only=True,
                output_loading_info=True,
            )
            self._model, report = loaded
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            raise ModelError(
                f"model directory {directory}: cannot be loaded: {error}",
                remedy="expected a causal language model as save_pretrained() writes it",
            ) from error
        if report["missing_keys"]:
            missing = ", ".join(sorted(report["missing_keys"])[:3])
            raise ModelError(f"model directory {directory}: weights are missing: {missing}")
        if not getattr(self._model, "_supports_attention_backend", False):
            raise ModelError(
                f"model directory {directory}: {type(self._model).__name__} cannot run on the CPU "
                "engine",
                remedy="serve it with SGLang: mainspring serve --engine sglang",
            )
        self._model.eval().set_attn_implementation(IMPLEMENTATION)
        self.padding = WHOLE if is_reproducible else NONE
        self.stamp = machine_stamp(torch.__version__, torch.backends.cpu.get_cpu_capability())
        self.adapters = Adapters(self._model)
        self.directory = directory
        self.vocab_size: int = self.config.vocab_size
        self.context_length = context_length or int(self.config.max_position_embeddings)
        self.end_ids = frozenset(self._end_ids())
        self.weights_digest = self._digest(read_weights(directory))
        self._check_runs()

    def _end_ids(self) -> set[int]:
        """The model's own end tokens and the tokenizer's, as SGLang takes them."""
        generation = self._model.generation_config
        ends: set[int] = set()
        for value in (self.config.eos_token_id, generation and generation.eos_token_id):
            ends |= set(value) if isinstance(value, list) else {value}
        ends.add(self.tokenizer.eos_token_id)
        return {end for end in ends if isinstance(end, int)}

    def _check_runs(self) -> None:
        """One token through the model: an architecture the engine cannot run shows now."""
        try:
            self.forward(SlotPool(1, self.kv_shape(1)), [[0]], 0)
        except (ValueError, TypeError, RuntimeError, AttributeError) as error:
            raise ModelError(
                f"model directory {self.directory}: cannot run on the CPU engine: {error}",
                remedy="serve it with SGLang: mainspring serve --engine sglang",
            ) from error

    def kv_shape(self, max_length: int | None = None) -> KvShape:
        heads = self.num_heads
        head_dim = getattr(self.config, "head_dim", None) or self.config.hidden_size // heads
        length = max_length or self.context_length
        return KvShape(
            num_layers=self.config.num_hidden_layers,
            num_kv_heads=getattr(self.config, "num_key_value_heads", None) or heads,
            head_dim=head_dim,
            max_length=self.padding.of_keys(length),
        )

    @property
    def is_reproducible(self) -> bool:
        return self.padding is not NONE

    @property
    def num_heads(self) -> int:
        """Of queries."""
        return self.config.num_attention_heads

    def linear_weights(self) -> list[torch.Tensor]:
        """[outputs, inputs] of every product in a pass."""
        modules = self._model.modules()
        return [module.weight for module in modules if isinstance(module, torch.nn.Linear)]

    @torch.inference_mode()
    def forward(
        self,
        pool: SlotPool,
        new_ids: list[list[int]],
        num_decoding: int,
        adapters: list[str | None] | None = None,
    ) -> torch.Tensor:
        """Run `new_ids[i]` behind what slot i holds, with the adapter that `adapters[i]` names;
        the logits after each one's last, [R, V]."""
        counts = [len(ids) for ids in new_ids]
        ragged = plan(pool, counts, num_decoding, self.padding)
        ids = torch.tensor([token for ids in new_ids for token in ids])
        last = torch.tensor(counts).cumsum(0) - 1
        with self.adapters.applied(adapters or [None] * len(counts), counts):
            output = self._model(
                input_ids=self._rows(ids)[None],
                position_ids=self._rows(ragged.positions)[None],
                use_cache=False,
                logits_to_keep=self._rows(last),
                ragged=ragged,
            )
        pool.record(ragged.slots, ragged.positions, ids)
        for slot, count in enumerate(counts):
            pool.lengths[slot] += count
        return output.logits[0, : len(counts)].float()

    def _rows(self, values: torch.Tensor) -> torch.Tensor:
        return padded(values, self.padding.of_rows(len(values)))

    def load_weights(self, directory: Path) -> None:
        """Replace all weights in place. Raises ModelError, and then nothing has changed."""
        check_servable(directory)
        try:
            loaded = _read_safetensors(directory)
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise ModelError(
                f"model directory {directory}: weights cannot be read: {error}"
            ) from None
        self._replace(loaded, f"model directory {directory}")
        self.directory = directory

    def take_weights(self, loaded: dict[str, torch.Tensor]) -> None:
        """The same with weights that came from elsewhere."""
        self._replace(loaded, "received weights")

    def _replace(self, loaded: dict[str, torch.Tensor], source: str) -> None:
        # Tied weights appear once in named_parameters() and once in a checkpoint.
        expected = dict(self._model.named_parameters())
        for name, parameter in expected.items():
            if name not in loaded:
                raise ModelError(f"{source}: weight {name} is missing")
            if loaded[name].shape != parameter.shape:
                raise ModelError(
                    f"{source}: weight {name} is {list(loaded[name].shape)}, "
                    f"the served model's is {list(parameter.shape)}",
                    remedy="publish weights of the architecture the engine was started with",
                )
        tied = dict(self._model.named_parameters(remove_duplicate=False))
        if unknown := sorted(loaded.keys() - tied.keys()):
            raise ModelError(f"{source}: weight {unknown[0]} is not the served model's")
        with torch.no_grad():
            for name, parameter in expected.items():
                parameter.copy_(loaded[name])
        self.weights_digest = self._digest(loaded)

    def _digest(self, names: Iterable[str]) -> str | None:
        """Of what is in memory, as infra.policy.weight_files.weights_digest is of the files; None
        when the files hold more than the model's weights."""
        weights = dict(self._model.named_parameters(remove_duplicate=False))
        digest = hashlib.sha256()
        for name in sorted(names):
            if name not in weights:
                return None
            add_to_digest(digest, name, weights[name].detach().numpy())
        return digest.hexdigest()


def _read_safetensors(directory: Path) -> dict[str, torch.Tensor]:
    index = directory / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    else:
        names = ["model.safetensors"]
    tensors: dict[str, torch.Tensor] = {}
    for name in names:
        with safe_open(directory / name, framework="pt") as shard:
            tensors.update({key: shard.get_tensor(key) for key in shard.keys()})  # noqa: SIM118
    return tensors
