"""The transformers model behind the engine: loading, its forward pass, new weights in place.

Weights are float32 on a CPU, and bfloat16 on a GPU. Loading checks everything before the first
tensor is touched: a directory that does not fit leaves the served weights as they are. A model is
computed the first of three ways by which it has the log-probs of its own forward, compared at the
start: all requests in one pass, each with a cache of its own, or each from its first token; else it
is refused. A reproducible model gives a request the same bits whatever runs beside it and however
its tokens were cut into passes: its passes are padded.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import structlog
import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from engine.model import file_weights, forward_check
from engine.model.adapters import Adapters
from engine.model.file_weights import first_line
from engine.model.forward_check import ForwardWay
from engine.model.key_values import Heads
from engine.model.packed_products import PackedProducts
from engine.model.padding import NONE, WHOLE
from engine.model.request_caches import RequestPass
from engine.model.slot_pass import SlotPass
from engine.model.slots import KvShape, SlotPool
from infra.policy.model.model_files import check_servable
from mainspring.artifacts.stamp import machine_stamp
from mainspring.errors import ModelError, UsageError
from mainspring.model_folder.config_file import where
from mainspring.model_folder.refusals import SGLANG, FolderUse, check_served
from mainspring.model_folder.weights import read_weights

_log = structlog.get_logger()


class ServedModel:
    def __init__(
        self,
        directory: Path,
        context_length: int | None = None,
        *,
        is_reproducible: bool = False,
        device: str = "cpu",
    ) -> None:
        """Raises ModelError when the directory cannot be served."""
        check_servable(directory, FolderUse.SERVED)
        self.device = _device(device)
        on_cpu = self.device.type == "cpu"
        if is_reproducible and not on_cpu:
            raise UsageError(
                f"device {self.device}: replies are reproducible on a CPU alone",
                remedy='give --device cpu, or schedule = "fastest"',
            )
        self.dtype = torch.float32 if on_cpu else torch.bfloat16
        transformers_logging.disable_progress_bar()
        try:
            config = AutoConfig.from_pretrained(directory, local_files_only=True)
            self.tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                directory,
                config=config,
                dtype=self.dtype,
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
        self._model.eval().to(self.device)
        self.padding = WHOLE if is_reproducible else NONE
        self.stamp = machine_stamp(torch.__version__, torch.backends.cpu.get_cpu_capability())
        self.adapters = Adapters(self._model)
        self.vocab_size = self._figure("vocab_size")
        self.context_length = self._context(context_length)
        self.end_ids = frozenset(self._end_ids())
        self._others = file_weights.others(self._model, directory)
        self.weights_digest = self._digest(read_weights(directory))
        self._dropped: dict[str, torch.Size] = {}
        """Shapes of the weights whose memory was given away, by name."""
        self.has_weights = True
        packs = on_cpu and not is_reproducible
        self._products = PackedProducts(self._model) if packs else None
        self._pack()
        self._way = self._found_way()
        if is_reproducible and (why := self._way.inexact(self.context_length)):
            raise ModelError(
                f"{where(directory)}: {self.architecture} cannot be served reproducibly: {why}",
                remedy='serve it without --reproducible, for schedule = "fastest"',
            )

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

    def _found_way(self) -> ForwardWay:
        """An architecture that a way computes otherwise than its own code shows now."""
        ways: tuple[Callable[[], ForwardWay], ...] = (
            lambda: SlotPass(self._model, self.adapters),
            lambda: RequestPass(self._model, self.adapters, keeps=True),
            lambda: RequestPass(self._model, self.adapters, keeps=False),
        )
        problems: list[str] = []
        for make in ways:
            found: ForwardWay | None = None
            try:
                with torch.inference_mode():
                    found = make()
                wrong = forward_check.problem(found, self._model, self.vocab_size, self.padding)
            except Exception as error:  # of the model's own code, which may raise anything
                wrong = first_line(error)
            if found is not None and wrong is None:
                if problems:
                    _log.warning(
                        "requests are not computed together", kept=found.name, why=problems
                    )
                return found
            if found is not None:
                found.undo()
            problems.append(wrong or "")
        raise self._cannot_run(problems[0])

    def shape(self) -> KvShape:
        """Size of a slot."""
        return self._way.shape(self._slot_length(None))

    def pool(self, num_slots: int, max_length: int | None = None) -> SlotPool:
        """Raises ModelError when the memory does not hold it."""
        length = self._slot_length(max_length)
        self._way.shape(length).check(num_slots)
        return self._way.pool(num_slots, length)

    def _slot_length(self, max_length: int | None) -> int:
        return self.padding.of_keys(max_length or self.context_length)

    @property
    def kept(self) -> str:
        """How requests are kept: in "slots", in caches of "requests", or "none"."""
        return self._way.name

    @property
    def is_reproducible(self) -> bool:
        return self.padding is not NONE

    def attention(self) -> Iterable[tuple[int, Heads]]:
        """Heads of queries, and what is kept of a token, of layers that differ in these."""
        return self._way.attention

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
        names = adapters or [None] * len(new_ids)
        logits = self._way.logits(pool, new_ids, num_decoding, names, self.padding)
        pool.extend(new_ids)
        return logits.float()

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
        if self._dropped:
            raise ModelError(
                f"{source}: the engine has given the memory of its weights away",
                remedy="POST /resume_memory_occupation first",
            )
        names = list(loaded)
        file_weights.replace(self._model, loaded, source)
        self._pack()
        self.weights_digest = self._digest(names)
        self.has_weights = True

    def drop_weights(self) -> None:
        """Give their memory away; nothing can run before `make_room` and new weights."""
        if not self._dropped:
            if self._products is not None:
                self._products.drop()
            self._dropped = file_weights.drop(self._model)
        self.has_weights, self.weights_digest = False, None

    def make_room(self) -> None:
        """Take memory for weights again; those that are to be served come by an update."""
        if self._dropped:
            file_weights.make_room(self._model, self._dropped)
            self._dropped = {}

    def free_unused(self) -> None:
        """Give back what torch keeps on a GPU beyond tensors."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    @property
    def weights_bytes(self) -> int:
        """Memory that weights hold now."""
        return file_weights.num_bytes(self._model)

    def _pack(self) -> None:
        if self._products is not None:
            self._products.pack()

    def _digest(self, names: Iterable[str]) -> str | None:
        if self.dtype is not torch.float32:  # rounded, so other values than the files have
            return None
        return file_weights.digest(self._model, {*names, *self._others}, self._others)


def _device(name: str) -> torch.device:
    """First GPU, else the CPU, where `name` is "auto". Raises UsageError."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "device cuda: torch sees no GPU on this machine",
            remedy="give --device cpu, or install a torch for the machine's GPU",
        )
    return torch.device(name)
