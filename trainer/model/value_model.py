"""The value model: a policy's layers, and one number for each wanted token instead of log-probs.

Invariants: the value of token t is computed from the tokens before it, in the place where the
policy computes its log-prob; the head begins as zero, so the first values are 0 and nothing is
random. Every tensor-parallel rank has the whole head and computes the same values. Imported by the
value engines.
"""

from pathlib import Path

import torch
from megatron.core import tensor_parallel
from torch import Tensor, nn
from transformers import PretrainedConfig

from mainspring.config.training.parallel import ParallelConfig
from trainer.model import hf_directory
from trainer.model.attention import MegatronSequences
from trainer.model.policy_model import PolicyModel, build_model
from trainer.model.processes import Processes
from trainer.model.weights import Weights


class ValueModel(PolicyModel):
    value_head: nn.Linear
    """On the last pipeline stage alone."""

    def _postprocess(
        self,
        hidden_states: Tensor,
        *_: object,
        labels: Tensor | None = None,
        loss_mask: Tensor | None = None,
        packed_seq_params: MegatronSequences | None = None,
        **__: object,
    ) -> Tensor:
        """Before the last stage the hidden states. There [N]: values of the N tokens that
        `loss_mask` [1, T] wants, in float32."""
        if not self.post_process:
            return hidden_states
        assert loss_mask is not None
        if self.config.sequence_parallel:
            # Every rank computes the whole loss, so its gradient is split, not added up.
            hidden_states = tensor_parallel.gather_from_sequence_parallel_region(
                hidden_states, tensor_parallel_output_grad=False
            )
        rows, head = hidden_states[:, 0][loss_mask[0]], self.value_head
        return nn.functional.linear(rows.float(), head.weight.float(), head.bias.float())[:, 0]


def build_value_model(
    model_dir: Path, parallel: ParallelConfig, processes: Processes
) -> tuple[ValueModel, Weights, PretrainedConfig]:
    """With the weights of a Hugging Face directory. Raises ModelError."""
    hf = hf_directory.load_config(model_dir)
    # It has no output layer. Tied, it keeps no weight for one, or on a last stage that is not the
    # first a copy of the embedding, which is not used.
    hf.tie_word_embeddings = True
    model = build_model(hf, parallel, processes, make=ValueModel)
    weights = Weights(model, hf, processes, model_dir)
    weights.load_hf(model_dir)
    if processes.is_last_stage:
        head = nn.Linear(hf.hidden_size, 1, device=processes.device)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        model.value_head = head  # after the weights of the directory, which has none for it
    return model, weights, hf


def begin_as(own: Weights, policy: object) -> None:
    """Give a value model the layers of a policy; its head is zero."""
    assert isinstance(policy, Weights), "a critic of Megatron's layers begins as a policy of them"
    weights = own.named()
    # Not the policy's output layer: a last stage has its name for a copy of the embedding.
    initial = policy.stored() | {n: w for n, w in weights.items() if n == "output_layer.weight"}
    own.take({name: initial.get(name, torch.zeros_like(w)) for name, w in weights.items()})
