"""Folders of tiny random models of many families of transformers; no weight is trivial."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from mainspring.trajectories.samples import NOT_SAMPLED, Sample

VOCAB_SIZE = 97
"""Odd, so that ranks get unequal shares."""
_BASE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
}
_WINDOWS = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {},
    "qwen3_moe": _EXPERTS,
    "qwen3_5_text": _LINEAR,
    "llama": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
    "mistral": {"sliding_window": 8},
    "gemma2": {**_WINDOWS, "query_pre_attn_scalar": 16, "final_logit_softcapping": 2.0},
    "gemma3_text": {**_WINDOWS, "query_pre_attn_scalar": 16, "tie_word_embeddings": True},
    "glm4": {"attention_bias": True},
    "gpt_oss": {**_WINDOWS, "num_local_experts": 4, "num_experts_per_tok": 2},
    "phi3": {},
    "olmo": {"num_key_value_heads": 4},
    "cohere2": {**_WINDOWS, "logit_scale": 0.25},
    "granite": {"logits_scaling": 3.0, "embedding_multiplier": 2.0},
    "phi": {"num_key_value_heads": 4},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
    },
}
"""Fields of each `model_type` beside the common ones."""
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "minimax": (
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "layer_types": ["linear_attention", "full_attention"],
            "block_size": 16,
        },
        "packed sequences have other log-probs than single ones",
    ),
    "bloom": ({"n_layer": 2, "n_head": 4}, "packed sequences have other log-probs"),
    "falcon": ({"ffn_hidden_size": 48}, "packed sequences have other log-probs"),
    "nemotron": ({}, "NemotronAttention makes a mask of its own, or does not hand on the lengths"),
    "recurrent_gemma": (
        {"lru_width": 32, "attention_window_size": 32},
        "RecurrentGemmaForCausalLM cannot compute packed sequences",
    ),
}
"""Families that would be computed wrongly, with the reason."""


def save_model(kind: str, directory: Path, **fields: Any) -> PreTrainedModel:
    """A model of this `model_type` with random weights, saved in `directory`."""
    own = FAMILIES[kind] if kind in FAMILIES else REFUSED[kind][0]
    dropped = {"head_dim"} if kind in ("deepseek_v3", "falcon") else set()
    base = {name: value for name, value in _BASE.items() if name not in dropped}
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **(base | own | fields))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 0.05 if parameter.ndim > 1 else 0.1
            parameter.add_(scale * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.add_(0.1 * torch.randn_like(buffer))
    model.save_pretrained(directory)
    (directory / "tokenizer.json").write_text('{"kept": "as it is"}')
    return model


def samples_of(shortest: int, longest: int, num: int = 6) -> list[Sample]:
    """Samples of unequal lengths, log-probs near uniform, one without advantage."""
    rng = np.random.default_rng(7)
    samples = []
    for index in range(num):
        length = int(rng.integers(shortest, longest))
        mask = rng.random(length) < 0.6
        mask[0], mask[-1] = False, True
        logprobs = np.where(mask, -np.log(VOCAB_SIZE) + 0.2 * rng.standard_normal(length), 0)
        advantage = 0.0 if index == 3 else rng.standard_normal()
        samples.append(
            Sample(
                rollout=f"r{index}",
                token_ids=rng.integers(0, VOCAB_SIZE, length).astype(np.int32),
                action_mask=mask,
                logprobs=logprobs.astype(np.float32),
                versions=np.where(mask, index % 2, NOT_SAMPLED).astype(np.int32),
                branch=0,
                advantages=np.where(mask, np.float32(advantage), np.float32(0)),
            )
        )
    return samples
