"""The transformers model behind the engine: loading, the ragged forward pass, new weights in place.

Weights are fp32. Loading checks everything before the first tensor is touched: a directory that
does not fit leaves the served weights as they are. A model whose log-probs are not those of its own
forward is refused at the start. A reproducible model gives a request the same bits whatever runs
beside it and however its tokens were cut into passes: its passes are padded.
"""

from pathlib import Path
from typing import Any

import structlog
import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from engine import file_weights, forward_check
from engine.adapters import Adapters
from engine.attention import IMPLEMENTATION, plan
from engine.file_weights import first_line
from engine.padding import NONE, WHOLE, padded
from engine.slots import KvShape, SlotPool
from infra.policy.model.model_files import check_servable
from mainspring.artifacts.stamp import machine_stamp
from mainspring.errors import ModelError
from mainspring.model_folder.config_file import where
from mainspring.model_folder.refusals import SGLANG, FolderUse, check_served
from mainspring.model_folder.weights import read_weights

_log = structlog.get_logger()


class ServedModel:
    def __init__(
        self, directory: Path, context_length: int | None = None, *, is_reproducible: bool = False
    ) -> None:
        """Raises ModelError when the directory cannot be served."""
        check_servable(directory, FolderUse.SERVED)
        transformers_logging.disable_progress_bar()
        try:
            config = AutoConfig.from_pretrained(directory, local_files_only=True)
            self.tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                directory,
                config=config,
                dtype=torch.float32,
                attn_implementation="eager",
                local_files_only=True,
                ignore_mismatched_sizes=True,  # they are reported
                output_loading_info=True,
            )
            self._model, report = loaded
        except Exception as error:  # the library has no class of its own for what it cannot load
            raise ModelError(
                f"model directory {directory}: cannot be loaded: {first_line(error)}",
                remedy="expected a causal language model as save_pretrained() writes it",
            ) from error
        if wrong := file_weights.unfit(report):
            raise ModelError(
                f"model directory {directory}: {wrong}",
                remedy="give the config.json that belongs to the weights",
            )
        if report["unexpected_keys"]:
            more = ", ".join(sorted(report["unexpected_keys"])[:3])
            _log.warning("weights are not used by the model", model=str(directory), weights=more)
        self.directory = directory
        # A model that also sees or hears keeps its language model's figures one level down.
        self.config = config.get_text_config(decoder=True)
        check_served(self.config.to_dict(), f"{where(directory)}: {self.architecture}")
        if not getattr(self._model, "_supports_attention_backend", False):
            raise self._cannot_run("its attention cannot be replaced")
        self._model.eval().set_attn_implementation(IMPLEMENTATION)
        self.padding = WHOLE if is_reproducible else NONE
        self.stamp = machine_stamp(torch.__version__, torch.backends.cpu.get_cpu_capability())
        self.adapters = Adapters(self._model)
        self.vocab_size = self._figure("vocab_size")
        self.context_length = self._context(context_length)
        self.end_ids = frozenset(self._end_ids())
        self.weights_digest = file_weights.digest(self._model, read_weights(directory))
        self._check_runs()

    @property
    def architecture(self) -> str:
        return type(self._model).__name__

    def _cannot_run(self, why: str) -> ModelError:
        return ModelError(
            f"{where(self.directory)}: {self.architecture} cannot run on the CPU engine: {why}",
            remedy=SGLANG,
        )

    def _figure(self, name: str) -> int:
        value = getattr(self.config, name, None)
        if not isinstance(value, int):
            raise self._cannot_run(f"its config names no {name}")
        return value

    def _context(self, size: int | None) -> int:
        longest = getattr(self.config, "max_position_embeddings", None)
        if size is None:
            return self._figure("max_position_embeddings")
        if isinstance(longest, int) and size > longest:
            raise ModelError(
                f"{where(self.directory)}: context length {size} is asked for, the model was made "
                f"for {longest} tokens",
                remedy=f"give at most {longest}, or max_position_embeddings in its config.json",
            )
        return size

    def _end_ids(self) -> set[int]:
        """The model's own end tokens and the tokenizer's, as SGLang takes them."""
        generation = self._model.generation_config
        ends: set[int] = set()
        for value in (self.config.eos_token_id, generation and generation.eos_token_id):
            ends |= set(value) if isinstance(value, list) else {value}
        ends.add(self.tokenizer.eos_token_id)
        return {end for end in ends if isinstance(end, int)}

    def _check_runs(self) -> None:
        """An architecture that the engine cannot run, or computes otherwise, shows now."""
        try:
            problem = forward_check.problem(self, self._model)
        except ModelError:
            raise
        except Exception as error:  # of the model's own code, which may raise anything
            reason = first_line(error)
            if isinstance(error, TypeError):
                reason = f"its code does not call attention as this engine gives it ({reason})"
            raise self._cannot_run(reason) from error
        if problem is not None:
            raise self._cannot_run(problem)

    def kv_shape(self, max_length: int | None = None) -> KvShape:
        heads = self.num_heads
        num_layers = self._figure("num_hidden_layers")
        head_dim = getattr(self.config, "head_dim", None) or self.config.hidden_size // heads
        length = max_length or self.context_length
        return KvShape(
            num_layers=num_layers,
            num_kv_heads=getattr(self.config, "num_key_value_heads", None) or heads,
            head_dim=head_dim,
            max_length=self.padding.of_keys(length),
        )

    @property
    def is_reproducible(self) -> bool:
        return self.padding is not NONE

    @property
    def num_heads(self) -> int:
        """Heads of queries."""
        return self._figure("num_attention_heads")

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
        pool.written.clear()
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
            loaded = file_weights.read_files(directory)
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise ModelError(
                f"model directory {directory}: weights cannot be read: {error}"
            ) from None
        self._replace(loaded, where(directory))
        self.directory = directory

    def take_weights(self, loaded: dict[str, torch.Tensor]) -> None:
        """The same with weights that came from elsewhere."""
        self._replace(loaded, "received weights")

    def _replace(self, loaded: dict[str, torch.Tensor], source: str) -> None:
        names = list(loaded)
        file_weights.replace(self._model, loaded, source)
        self.weights_digest = file_weights.digest(self._model, names)
