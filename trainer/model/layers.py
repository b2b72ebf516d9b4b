"""The layers of the policy in Megatron-core's terms: their sizes, and what they are built from.

With Transformer Engine its own layers; without it Megatron's local ones, with torch's attention and
an explicit norm (Megatron would take Apex's, which knows no RMSNorm). Imported by
`trainer.model.policy_model`.
"""

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from transformers import PretrainedConfig

from mainspring.algorithms.gap import Dtype
from mainspring.config.training.parallel import ParallelConfig, Recompute
from trainer.model.attention import SdpaAttention
from trainer.model.families import has_qk_norm, has_qkv_bias, head_dim, num_experts

# Megatron-core 0.16.1 asks whether this is None and names it only with Transformer Engine.
if not hasattr(moe_utils, "te_general_gemm"):
    moe_utils.te_general_gemm = None  # pyright: ignore[reportAttributeAccessIssue]


class RmsNorm(torch.nn.Module):
    """Megatron's own wrapper of torch's refuses sequence parallelism."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-6, **_: object):
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        # Megatron adds up its gradient over tensor-parallel ranks, which see other tokens each.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, hidden: Tensor) -> Tensor:
        return F.rms_norm(hidden, self.weight.shape, self.weight, self.eps)


def transformer_config(
    hf: PretrainedConfig, parallel: ParallelConfig, *, on_cuda: bool
) -> TransformerConfig:
    in_bfloat16 = parallel.dtype is Dtype.BFLOAT16
    dtype = torch.bfloat16 if in_bfloat16 else torch.float32
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
        add_qkv_bias=has_qkv_bias(hf),
        qk_layernorm=has_qk_norm(hf),
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=parallel.tensor_parallel,
        pipeline_model_parallel_size=parallel.pipeline_parallel,
        context_parallel_size=parallel.context_parallel,
        sequence_parallel=parallel.sequence_parallel,
        # Stages exchange micro-batches of different lengths; Megatron demands its all-to-all
        # dispatcher for that, also without experts. The other one needs no CUDA.
        variable_seq_lengths=parallel.pipeline_parallel > 1,
        moe_token_dispatcher_type="alltoall" if on_cuda or parallel.world_size > 1 else "allgather",
        bf16=in_bfloat16,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        # The loss is divided once, by the whole batch's tokens: neither micro-batches nor copies of
        # the model divide it again.
        calculate_per_token_loss=True,
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
        batch_p2p_sync=False,
        **_recompute(parallel.recompute),
        **_experts(hf, parallel),
    )


def _recompute(kind: Recompute) -> dict[str, Any]:
    match kind:
        case Recompute.NONE:
            return {}
        case Recompute.MLP:
            return {"recompute_granularity": "selective", "recompute_modules": ["mlp"]}
        case Recompute.FULL:
            return {
                "recompute_granularity": "full",
                "recompute_method": "uniform",
                "recompute_num_layers": 1,
            }


def _experts(hf: PretrainedConfig, parallel: ParallelConfig) -> dict[str, Any]:
    if not num_experts(hf):
        return {}
    return {
        "num_moe_experts": num_experts(hf),
        "moe_router_topk": hf.num_experts_per_tok,
        "moe_ffn_hidden_size": hf.moe_intermediate_size,
        # Softmax over the chosen ones equals softmax over all, divided by the chosen ones' sum.
        "moe_router_pre_softmax": not hf.norm_topk_prob,
        "moe_router_load_balancing_type": "none",
        "moe_router_dtype": "fp32" if parallel.dtype is Dtype.BFLOAT16 else None,
        "expert_model_parallel_size": parallel.expert_parallel,
        "expert_tensor_parallel_size": 1,
    }


def block(
    config: TransformerConfig, num_layers: int, *, transformer_engine: bool
) -> TransformerBlockSubmodules:
    """Submodules of one pipeline stage."""
    experts = config.num_moe_experts
    if transformer_engine:
        from megatron.core.extensions.transformer_engine import TENorm

        spec = get_gpt_layer_with_transformer_engine_spec(
            qk_layernorm=config.qk_layernorm, num_experts=experts, moe_grouped_gemm=bool(experts)
        )
        return _stage(spec, num_layers, TENorm)
    spec = get_gpt_layer_local_spec(
        qk_layernorm=config.qk_layernorm, normalization="RMSNorm", num_experts=experts
    )
    layer: Any = spec.submodules
    layer.input_layernorm = layer.pre_mlp_layernorm = RmsNorm
    attention = layer.self_attention.submodules
    attention.core_attention = SdpaAttention
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RmsNorm
    return _stage(spec, num_layers, RmsNorm)


def _stage(spec: ModuleSpec, num_layers: int, norm: Any) -> TransformerBlockSubmodules:
    return TransformerBlockSubmodules(layer_specs=[spec] * num_layers, layer_norm=norm)
