"""Weights between Hugging Face's names and Megatron-core's, for any tensor-parallel size.

Owns the name table and the layout rules; pure functions on state dicts, no files, no processes.
Invariants: HF -> mcore -> HF is bit-exact for every tp size; a weight that has no place, or a
place that gets no weight, is an error. Layout rules that differ between the two:
- q, k and v are one matrix, per group of KV heads `[its query heads; k; v]`, groups stacked;
- gate and up are one matrix, `[gate; up]` of this rank's rows;
- vocabulary rows are padded to a multiple of the tp size;
- Transformer Engine keeps the two norms of a layer inside the linear that follows them.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from transformers import PretrainedConfig

from mainspring.errors import ModelError
from trainer.model import head_dim, padded_vocab_size

StateDict = dict[str, Tensor]

QKV = "self_attention.linear_qkv"
GATE_UP = "mlp.linear_fc1"
EMBEDDING = "embedding.word_embeddings.weight"
OUTPUT = "output_layer.weight"
FINAL_NORM = "decoder.final_layernorm.weight"

HF_EMBEDDING = "model.embed_tokens.weight"
HF_OUTPUT = "lm_head.weight"
HF_FINAL_NORM = "model.norm.weight"

# mcore name inside a layer -> HF name inside a layer, where the two tensors are the same
_SAME = {
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "mlp.linear_fc2.weight": "mlp.down_proj.weight",
}
_QK_NORMS = {
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
}
_LOCAL_NORMS = {
    "input_layernorm.weight": "input_layernorm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
}
_TE_NORMS = {
    f"{QKV}.layer_norm_weight": "input_layernorm.weight",
    f"{GATE_UP}.layer_norm_weight": "post_attention_layernorm.weight",
}


def shard_dim(name: str) -> int | None:
    """The dimension tensor parallelism cuts an mcore weight along; None: every rank has all."""
    if name in (EMBEDDING, OUTPUT) or name.endswith((f"{QKV}.weight", f"{QKV}.bias")):
        return 0
    if name.endswith(f"{GATE_UP}.weight"):
        return 0
    if name.endswith(("linear_proj.weight", "linear_fc2.weight")):
        return 1
    return None


def qkv_rows(hf: PretrainedConfig) -> dict[str, Tensor]:
    """Rows of the whole fused qkv weight that are q, k and v, each in HF's order."""
    dim = head_dim(hf)
    q_per_group = hf.num_attention_heads // hf.num_key_value_heads * dim
    rows = torch.arange(hf.num_key_value_heads * (q_per_group + 2 * dim))
    rows = rows.view(hf.num_key_value_heads, -1)
    q, k, v = rows.split([q_per_group, dim, dim], dim=1)
    return {"q": q.reshape(-1), "k": k.reshape(-1), "v": v.reshape(-1)}


def _direct(hf: PretrainedConfig, te: bool) -> dict[str, str]:
    norms = _TE_NORMS if te else _LOCAL_NORMS
    return _SAME | norms | (_QK_NORMS if hf.model_type == "qwen3" else {})


def _qkv_kinds(hf: PretrainedConfig) -> tuple[str, ...]:
    return ("weight", "bias") if hf.model_type == "qwen2" else ("weight",)


def hf_to_mcore(
    state: Mapping[str, Tensor],
    hf: PretrainedConfig,
    *,
    tp_rank: int = 0,
    tp_size: int = 1,
    transformer_engine: bool = False,
) -> StateDict:
    """One rank's shard of a full HF state dict. Raises ModelError for missing or unknown names."""
    left = dict(state)

    def take(name: str) -> Tensor:
        try:
            return left.pop(name)
        except KeyError:
            raise ModelError(
                f"model {hf.name_or_path!r}: weight {name!r} is missing",
                remedy=f"expected the weights of a {hf.model_type} model",
            ) from None

    def shard(name: str, full: Tensor) -> Tensor:
        dim = shard_dim(name)
        part = full if dim is None else full.chunk(tp_size, dim)[tp_rank]
        return part.clone()

    def vocab(full: Tensor) -> Tensor:
        padding = padded_vocab_size(hf, tp_size) - full.shape[0]
        return torch.cat([full, full.new_zeros(padding, full.shape[1])])

    out = {EMBEDDING: shard(EMBEDDING, vocab(take(HF_EMBEDDING)))}
    for index in range(hf.num_hidden_layers):
        m, h = f"decoder.layers.{index}.", f"model.layers.{index}."
        for ours, theirs in _direct(hf, transformer_engine).items():
            out[m + ours] = shard(m + ours, take(h + theirs))
        for kind in _qkv_kinds(hf):
            q, k, v = (take(f"{h}self_attn.{x}_proj.{kind}") for x in "qkv")
            fused = q.new_empty(q.shape[0] + k.shape[0] + v.shape[0], *q.shape[1:])
            for rows, part in zip(qkv_rows(hf).values(), (q, k, v), strict=True):
                fused[rows] = part
            out[f"{m}{QKV}.{kind}"] = shard(f"{m}{QKV}.{kind}", fused)
        gate, up = (take(f"{h}mlp.{x}_proj.weight") for x in ("gate", "up"))
        out[f"{m}{GATE_UP}.weight"] = torch.cat(
            [gate.chunk(tp_size)[tp_rank], up.chunk(tp_size)[tp_rank]]
        )
    out[FINAL_NORM] = take(HF_FINAL_NORM).clone()
    if hf.tie_word_embeddings:
        left.pop(HF_OUTPUT, None)
    else:
        out[OUTPUT] = shard(OUTPUT, vocab(take(HF_OUTPUT)))
    if left:
        raise ModelError(
            f"model {hf.name_or_path!r}: weights {sorted(left)[:3]} have no place",
            remedy=f"expected the weights of a {hf.model_type} model",
        )
    return out


def mcore_to_hf(shards: Sequence[Mapping[str, Tensor]], hf: PretrainedConfig) -> StateDict:
    """The full HF state dict of all ranks' shards, in rank order."""
    te = f"decoder.layers.0.{QKV}.layer_norm_weight" in shards[0]

    def whole(name: str) -> Tensor:
        dim = shard_dim(name)
        if dim is None:
            return shards[0][name].clone()
        return torch.cat([shard[name] for shard in shards], dim)

    out = {HF_EMBEDDING: whole(EMBEDDING)[: hf.vocab_size].clone()}
    for index in range(hf.num_hidden_layers):
        m, h = f"decoder.layers.{index}.", f"model.layers.{index}."
        for ours, theirs in _direct(hf, te).items():
            out[h + theirs] = whole(m + ours)
        for kind in _qkv_kinds(hf):
            fused = whole(f"{m}{QKV}.{kind}")
            for x, rows in qkv_rows(hf).items():
                out[f"{h}self_attn.{x}_proj.{kind}"] = fused[rows]
        halves = [shard[f"{m}{GATE_UP}.weight"].chunk(2) for shard in shards]
        out[f"{h}mlp.gate_proj.weight"] = torch.cat([gate for gate, _ in halves])
        out[f"{h}mlp.up_proj.weight"] = torch.cat([up for _, up in halves])
    out[HF_FINAL_NORM] = whole(FINAL_NORM)
    if not hf.tie_word_embeddings:
        out[HF_OUTPUT] = whole(OUTPUT)[: hf.vocab_size].clone()
    return out
