"""Tiny random models of many architectures of transformers, by how the engine serves them."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.infra.policy.tiny_model import make_tokenizer

VOCAB = 320
BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": None,
}
FOUR_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
NAMED_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
OLD = {"vocab_size": VOCAB, "eos_token_id": 1, "bos_token_id": None, "pad_token_id": None}

EXPERTS: dict[str, dict[str, Any]] = {
    "qwen3_moe": BASE | NAMED_EXPERTS,
    "mixtral": BASE | FOUR_EXPERTS,
    "minimax_m2": BASE | FOUR_EXPERTS | {"rotary_dim": 8},
    "glm4_moe": BASE | ROUTED | {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    "qwen2_moe": BASE | NAMED_EXPERTS | {"shared_expert_intermediate_size": 24},
    "granitemoe": BASE | FOUR_EXPERTS,
}
WINDOWS = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
}
HEADS = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 16}
MAMBA2 = {"num_heads": 8, "head_dim": 8, "state_size": 16, "n_groups": 1, "chunk_size": 16}
LATENT = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8}
SLOTS = EXPERTS | {
    "qwen2": {k: v for k, v in BASE.items() if k != "head_dim"},
    "qwen3": BASE,
    "llama": BASE,
    "mistral": BASE | {"sliding_window": 8},
    "glm4": BASE,
    "phi3": BASE,
    "phi": BASE | {"num_key_value_heads": 4},
    "olmo": BASE | {"num_key_value_heads": 4},
    "olmo2": BASE,
    "granite": BASE | {"logits_scaling": 3.0},
    "smollm3": BASE,
    "gemma": BASE,
    "gemma2": BASE | WINDOWS | {"query_pre_attn_scalar": 16, "final_logit_softcapping": 2.0},
    "gemma3_text": BASE | WINDOWS | {"query_pre_attn_scalar": 16},
    "cohere2": BASE | WINDOWS | {"logit_scale": 0.25},
    "gpt_oss": BASE | FOUR_EXPERTS | WINDOWS,
    "gpt2": OLD | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "deepseek_v3": {k: v for k, v in BASE.items() if k != "head_dim"}
    | ROUTED
    | LATENT
    | {"num_key_value_heads": 4, "v_head_dim": 12, "n_group": 1, "topk_group": 1}
    | {"n_shared_experts": 1, "first_k_dense_replace": 1},
    "qwen3_5_text": BASE | LINEAR,
    "qwen3_next": BASE | NAMED_EXPERTS | LINEAR | {"shared_expert_intermediate_size": 24},
    "lfm2": BASE | {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": BASE
    | NAMED_EXPERTS
    | {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "granitemoehybrid": BASE
    | FOUR_EXPERTS
    | HEADS
    | {"layer_types": ["mamba", "attention"], "mamba_chunk_size": 16},
    "nemotron_h": BASE
    | {"layers_block_type": ["mamba", "attention"], "mamba_num_heads": 8, "mamba_head_dim": 8}
    | {"ssm_state_size": 16, "n_groups": 1, "chunk_size": 16},
    "falcon_h1": BASE | HEADS | {"mamba_d_ssm": 64, "mamba_chunk_size": 16},
}
STATES = ("qwen3_5_text", "lfm2", "granitemoehybrid", "falcon_h1")
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
REQUESTS: dict[str, dict[str, Any]] = {
    "llama4_text": BASE | FOUR_EXPERTS | {"intermediate_size_mlp": 48, "attention_chunk_size": 8},
    "diffllama": BASE,
    "doge": BASE,
    "nemotron": BASE,
    "falcon": OLD | SIZES,
    "bloom": OLD | {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "mpt": OLD | {"d_model": 32, "n_layers": 2, "n_heads": 4},
    "mamba2": OLD | {"hidden_size": 32, "num_hidden_layers": 2} | MAMBA2,
}
NOTHING: dict[str, dict[str, Any]] = {
    "minimax": BASE | FOUR_EXPERTS | {"layer_types": ["linear_attention", "full_attention"]},
    "recurrent_gemma": BASE | {"lru_width": 32},
    "xlstm": OLD | {"hidden_size": 32, "num_blocks": 2, "num_heads": 4},
}
WAYS = {"slots": SLOTS, "requests": REQUESTS, "none": NOTHING}
FIELDS = SLOTS | REQUESTS | NOTHING


def save(directory: Path, family: str, fields: dict[str, Any], seed: int = 0) -> Path:
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **fields)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    model.save_pretrained(directory)
    make_tokenizer().save_pretrained(directory)
    return directory
