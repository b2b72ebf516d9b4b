"""The policy as a Megatron-core GPTModel, built from a Hugging Face config.

Invariants: any model that `mainspring.model_folder` does not refuse gives the same log-probs as
Hugging Face; no CUDA is needed; weights are left uninitialised, `trainer.model.weights` fills them.
Input is packed (`trainer.model.attention`); the last pipeline stage returns log-probs and entropies
of the tokens that are wanted, never the logits of all. Imported by the step engines.
"""

from dataclasses import replace
from typing import Any, TypeVar

import torch
from megatron.core import tensor_parallel
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import HAVE_TE
from torch import Tensor
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from mainspring.config.training.parallel import ParallelConfig
from trainer.model.attention import MegatronSequences
from trainer.model.convert import shard_dim
from trainer.model.families import check_divides, head_dim, padded_vocab_size
from trainer.model.layers import block, transformer_config
from trainer.model.processes import Processes
from trainer.model.token_logprobs import OutputLayer, token_logprobs


class PolicyModel(GPTModel):
    output: OutputLayer

    def _postprocess(
        self,
        hidden_states: Tensor,
        *_: object,
        labels: Tensor | None = None,
        loss_mask: Tensor | None = None,
        packed_seq_params: MegatronSequences | None = None,
        **__: object,
    ) -> Tensor:
        """Before the last stage the hidden states. There [2, N]: log-prob and entropy of the N
        tokens of `labels` [1, T] that `loss_mask` [1, T] wants."""
        if not self.post_process:
            return hidden_states
        assert labels is not None and loss_mask is not None and packed_seq_params is not None
        if self.config.sequence_parallel:
            hidden_states = tensor_parallel.gather_from_sequence_parallel_region(hidden_states)
        rows = hidden_states[:, 0][loss_mask[0]]
        if not self.config.sequence_parallel:
            rows = tensor_parallel.copy_to_tensor_model_parallel_region(rows)
        weight: Any = self.output_layer.weight
        if self.share_embeddings_and_output_weights:
            weight = self.shared_embedding_or_output_weight()
        output = replace(self.output, as_served=packed_seq_params.as_served)
        return torch.stack(token_logprobs(rows, weight, labels[loss_mask], output))


M = TypeVar("M", bound=PolicyModel)


class Rope(RotaryEmbedding):
    """Rotary embedding that stays where its frequencies are: the stock one moves to CUDA."""

    def get_emb(self, max_seq_len: int, offset: int = 0) -> Tensor:
        freqs = self.get_freqs_non_repeated(max_seq_len, offset)
        return torch.cat((freqs, freqs), dim=-1)[:, None, None, :]


def build_model(
    hf: PretrainedConfig,
    parallel: ParallelConfig,
    processes: Processes,
    *,
    temperature: float = 1.0,
    make: type[M] = PolicyModel,
) -> M:
    """This rank's shard on its device. Needs initialised model-parallel groups."""
    check_divides(hf, parallel)
    on_cuda = processes.device.type == "cuda"
    config = transformer_config(hf, parallel, on_cuda=on_cuda)
    num_layers = hf.num_hidden_layers // parallel.pipeline_parallel
    # Megatron takes a whole block too, and declares it nowhere.
    stage: Any = block(config, num_layers, transformer_engine=on_cuda and HAVE_TE)
    model = make(
        config=config,
        transformer_layer_spec=stage,
        vocab_size=padded_vocab_size(hf, parallel.tensor_parallel),
        max_sequence_length=hf.max_position_embeddings,
        pre_process=processes.is_first_stage,
        post_process=processes.is_last_stage,
        parallel_output=True,
        share_embeddings_and_output_weights=hf.tie_word_embeddings,
        position_embedding_type="rope",
    )
    model.rotary_pos_emb = _rope(hf, processes)
    model.output = OutputLayer(
        vocab_size=hf.vocab_size,
        temperature=temperature,
        tp_group=processes.tp_group if processes.tp_size > 1 else None,
    )
    _mark_shards(model)
    return model.to(processes.device)


def _mark_shards(model: PolicyModel) -> None:
    """Megatron marks a weight where it initialises it, which we leave out; in the gradient's norm
    it counts an unmarked weight as a copy, of the first tensor-parallel rank alone."""
    for name, parameter in model.named_parameters():
        dim = shard_dim(name)
        if dim is not None and not getattr(parameter, "tensor_model_parallel", False):
            tensor_parallel.set_tensor_model_parallel_attributes(parameter, True, dim, 1)


def _rope(hf: PretrainedConfig, processes: Processes) -> Rope:
    parameters: dict[str, Any] = hf.rope_parameters
    rope = Rope(
        head_dim(hf),
        rotary_percent=1.0,
        rotary_base=parameters["rope_theta"],
        use_cpu_initialization=True,
        cp_group=processes.cp_group,
    )
    kind = parameters.get("rope_type", "default")
    if kind != "default":
        rope.inv_freq, scale = ROPE_INIT_FUNCTIONS[kind](hf, torch.device("cpu"))
        assert scale == 1.0, f"rope_type {kind!r} scales attention"
    rope.inv_freq = rope.inv_freq.to(processes.device)
    return rope
