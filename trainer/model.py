"""The policy as a Megatron-core GPTModel, built from a Hugging Face config.

Invariants: any dense decoder of the families in `FAMILIES` gives the same logits as Hugging Face;
no CUDA is needed; weights are left uninitialised, `trainer.convert` fills every one of them.
Input is a right-padded batch [B, S]: attention is causal, so padding behind a sequence changes
nothing before it and no mask exists. Imported by the trainer only.
"""

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    HAVE_TE,
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from mainspring.errors import ModelError

FAMILIES = ("qwen3", "qwen2", "llama")
"""Values of `model_type` whose weights `trainer.convert` can name."""


class SdpaAttention(MegatronModule):
    """torch's attention as Megatron's core attention: causal, grouped queries, any device."""

    def __init__(self, config: TransformerConfig, softmax_scale: float | None = None, **_: object):
        super().__init__(config=config)
        assert config.kv_channels is not None
        self.scale = softmax_scale or config.kv_channels**-0.5
        self.key_block = 1
        """Keys are padded to a multiple of it: a sum over them depends on how many there are."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **_: object
    ) -> Tensor:
        """[S, B, heads, channels] in, [S, B, heads * channels] out."""
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        mask, num_missing = None, -k.shape[2] % self.key_block
        if self.key_block > 1:
            k, v = (F.pad(x, (0, 0, 0, num_missing)) for x in (k, v))
            # is_causal leaves blocks of keys out, and so sums in another order.
            mask = q.new_full((q.shape[2], k.shape[2]), -torch.inf).triu(1)
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            is_causal=mask is None,
            scale=self.scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return out.permute(2, 0, 1, 3).flatten(2)


class Rope(RotaryEmbedding):
    """Rotary embedding that stays where its frequencies are: the stock one moves to CUDA."""

    def get_emb(self, max_seq_len: int, offset: int = 0) -> Tensor:
        freqs = self.get_freqs_non_repeated(max_seq_len, offset)
        return torch.cat((freqs, freqs), dim=-1)[:, None, None, :]


def head_dim(hf: PretrainedConfig) -> int:
    return getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads


def padded_vocab_size(hf: PretrainedConfig, tp_size: int) -> int:
    """Rows of the embedding over all ranks: the vocabulary rounded up to the shards."""
    return -(-hf.vocab_size // tp_size) * tp_size


def check_supported(hf: PretrainedConfig, tp_size: int) -> None:
    """Raises ModelError naming what about the model cannot be trained."""
    where = f"model {hf.name_or_path or hf.model_type!r}"
    if hf.model_type not in FAMILIES:
        raise ModelError(
            f"{where}: model_type {hf.model_type!r} cannot be trained",
            remedy=f"use a dense model of {', '.join(FAMILIES)}",
        )
    if hf.model_type != "qwen2" and getattr(hf, "attention_bias", False):
        raise ModelError(f"{where}: attention_bias = true cannot be trained")
    if getattr(hf, "mlp_bias", False):
        raise ModelError(f"{where}: mlp_bias = true cannot be trained")
    if getattr(hf, "use_sliding_window", False):
        raise ModelError(f"{where}: use_sliding_window = true cannot be trained")
    if hf.hidden_act != "silu":
        raise ModelError(f"{where}: hidden_act is {hf.hidden_act!r}, expected 'silu'")
    for field in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        if getattr(hf, field) % tp_size:
            raise ModelError(
                f"{where}: {field} = {getattr(hf, field)} cannot be split over "
                f"tensor_parallel = {tp_size}",
                remedy="set trainer.tensor_parallel to a divisor",
            )


def transformer_config(hf: PretrainedConfig, tp_size: int, *, on_cuda: bool) -> TransformerConfig:
    return TransformerConfig(
        num_layers=hf.num_hidden_layers,
        hidden_size=hf.hidden_size,
        num_attention_heads=hf.num_attention_heads,
        num_query_groups=hf.num_key_value_heads,
        kv_channels=head_dim(hf),
        ffn_hidden_size=hf.intermediate_size,
        normalization="RMSNorm",
        layernorm_epsilon=hf.rms_norm_eps,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        add_qkv_bias=hf.model_type == "qwen2",
        qk_layernorm=hf.model_type == "qwen3",
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=tp_size,
        params_dtype=torch.float32,
        pipeline_dtype=torch.float32,
        use_cpu_initialization=not on_cuda,
        perform_initialization=False,
        # Every fusion below is a CUDA kernel or compiled by torch.compile.
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
        batch_p2p_comm=False,
    )


def layer_spec(*, qk_layernorm: bool, transformer_engine: bool) -> ModuleSpec:
    if transformer_engine:
        return get_gpt_layer_with_transformer_engine_spec(qk_layernorm=qk_layernorm)
    spec = get_gpt_layer_local_spec(qk_layernorm=qk_layernorm, normalization="RMSNorm")
    submodules: Any = spec.submodules
    submodules.self_attention.submodules.core_attention = SdpaAttention
    return spec


def build_model(hf: PretrainedConfig, tp_size: int, device: torch.device) -> GPTModel:
    """This rank's shard on `device`. Needs initialised model-parallel groups."""
    check_supported(hf, tp_size)
    on_cuda = device.type == "cuda"
    config = transformer_config(hf, tp_size, on_cuda=on_cuda)
    model = GPTModel(
        config=config,
        transformer_layer_spec=layer_spec(
            qk_layernorm=config.qk_layernorm, transformer_engine=on_cuda and HAVE_TE
        ),
        vocab_size=padded_vocab_size(hf, tp_size),
        max_sequence_length=hf.max_position_embeddings,
        parallel_output=True,
        share_embeddings_and_output_weights=hf.tie_word_embeddings,
        position_embedding_type="rope",
    )
    model.rotary_pos_emb = _rope(hf, device)
    return model.to(device)


def _rope(hf: PretrainedConfig, device: torch.device) -> Rope:
    parameters = hf.rope_parameters
    rope = Rope(
        head_dim(hf),
        rotary_percent=1.0,
        rotary_base=parameters["rope_theta"],
        use_cpu_initialization=True,
    )
    kind = parameters.get("rope_type", "default")
    if kind != "default":
        inv_freq, scale = ROPE_INIT_FUNCTIONS[kind](hf, torch.device("cpu"))
        if kind not in ("linear", "llama3") or scale != 1.0:
            raise ModelError(
                f"model {hf.name_or_path!r}: rope_type {kind!r} cannot be trained",
                remedy="use a model whose rope_type is default, linear or llama3",
            )
        rope.inv_freq = inv_freq
    rope.inv_freq = rope.inv_freq.to(device)
    return rope
