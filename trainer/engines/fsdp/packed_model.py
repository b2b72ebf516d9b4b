"""A model of transformers as the root that FSDP shards: packed tokens in, log-probs out.

One forward pass of the root does all, since FSDP gathers weights in its hooks: body, choice of the
wanted rows, and what is made of them: log-probs of a policy, values of a critic
(`trainer.values.fsdp`). Invariants: nothing here is chosen by the name of a family; modules that
keep a state along a sequence get one sequence at a time; without a sequence every weight still gets
a gradient, of zeros, as all ranks must reduce the same weights. Imported by the rest of this folder
and by the critic's engine.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from mainspring.errors import ModelError
from trainer.engines.fsdp.attention import IMPLEMENTATION
from trainer.model.micro_batch import MicroBatch
from trainer.model.token_logprobs import OutputLayer, token_logprobs


class PackedBody(nn.Module, ABC):
    """All but what is made of the rows."""

    exact: tuple[nn.Module, ...] = ()
    """Modules that compute in float32, whatever the numbers of the others."""

    def __init__(self, lm: Any, named: str) -> None:
        """`named`: begins messages. Raises ModelError."""
        super().__init__()
        self.lm = lm
        self._named = named
        self._lengths: tuple[int, ...] = ()
        self._stock: str = lm.config._attn_implementation
        """Attention of the model's own, which the probe compares with."""
        for module in lm.modules():
            if any(isinstance(child, nn.Conv1d) for child in module.children()):
                self._by_sequence(module)
        lm.eval()  # no dropout: equal calls give equal numbers
        self._use(IMPLEMENTATION)

    def forward(self, batch: MicroBatch) -> tuple[Tensor, ...]:
        """[N] each, of the N wanted tokens."""
        self._lengths = batch.sequences.lengths_N
        positions = [torch.arange(length, device=batch.ids.device) for length in self._lengths]
        hidden = self.lm.base_model(
            input_ids=batch.ids,
            position_ids=torch.cat(positions)[None],
            use_cache=False,
            sequences=batch.sequences,
        ).last_hidden_state
        rows = hidden[0][batch.wanted[0]]
        first, *others = self._made_of(rows, batch)
        if not len(rows):
            first = first + hidden.sum() * 0.0
        return first, *others

    @abstractmethod
    def _made_of(self, rows: Tensor, batch: MicroBatch) -> tuple[Tensor, ...]:
        """From [N, hidden] the hidden states that predict the wanted tokens."""

    @contextmanager
    def own_attention(self) -> Iterator[None]:
        """The model computes attention as transformers does meanwhile."""
        self._use(self._stock)
        try:
            yield
        finally:
            self._use(IMPLEMENTATION)

    def _use(self, implementation: str) -> None:
        try:
            self.lm.set_attn_implementation(implementation)
        except ValueError as error:
            raise ModelError(
                f"{self._named}: transformers lets no other attention take the place of its own: "
                f"{error}",
                remedy="use another model",
            ) from None

    def _by_sequence(self, mixer: nn.Module) -> None:
        inner = mixer.forward

        def forward(hidden_states: Tensor, *args: Any, **options: Any) -> Tensor:
            options.pop("attention_mask", None)  # of padding, of which there is none
            parts = hidden_states.split(self._lengths, dim=1)
            return torch.cat([inner(part, *args, **options) for part in parts], dim=1)

        mixer.forward = forward


class PackedModel(PackedBody):
    """Log-probs and entropies."""

    def __init__(self, lm: Any, named: str, temperature: float) -> None:
        super().__init__(lm, named)
        head = lm.get_output_embeddings()
        if not isinstance(head, nn.Linear):
            raise ModelError(
                f"{named}: its output layer is {type(head).__name__}, expected Linear",
                remedy="use another model",
            )
        text = lm.config.get_text_config()
        self._row_scale = _row_scale(text)
        self._output = OutputLayer(
            vocab_size=head.out_features,
            temperature=temperature,
            tp_group=None,
            softcap=getattr(text, "final_logit_softcapping", None),
        )

    def forward(self, batch: MicroBatch, *, alone: bool = False) -> tuple[Tensor, ...]:
        """`alone`: of a single sequence, by the model's own attention and output layer."""
        return self._alone(batch) if alone else super().forward(batch)

    def _made_of(self, rows: Tensor, batch: MicroBatch) -> tuple[Tensor, ...]:
        if self._row_scale != 1.0:
            rows = rows * self._row_scale
        head = self.lm.get_output_embeddings()
        weight = head.weight
        if head.bias is not None:
            weight = torch.cat([weight, head.bias[:, None]], dim=1)
            rows = torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1)
        output = replace(self._output, as_served=batch.sequences.as_served)
        return token_logprobs(rows, weight, batch.labels[batch.wanted], output)

    def _alone(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        self._lengths = batch.sequences.lengths_N
        assert len(self._lengths) == 1, self._lengths
        logits = self.lm(input_ids=batch.ids, use_cache=False).logits[0].float()
        logprobs = torch.log_softmax(logits / self._output.temperature, dim=-1)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        picked = logprobs.gather(1, batch.labels[0][:, None])[:, 0]
        wanted = batch.wanted[0]
        return picked[wanted], entropy[wanted]


def _row_scale(text: PretrainedConfig) -> float:
    """Factor of the logits, which the fields of a config name in two ways."""
    scale = getattr(text, "logit_scale", None)
    divisor = getattr(text, "logits_scaling", None)
    return (1.0 if scale is None else scale) / (1.0 if divisor is None else divisor)
