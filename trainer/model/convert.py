"""Weights between Hugging Face's names and Megatron-core's, one weight at a time.

Owns the name table and the layout rules; pure functions on tensors, no files, no processes.
Megatron's names here number layers and experts over all ranks (`global_name`). Invariants: HF ->
mcore -> HF is bit-exact for every tensor-parallel size; a weight without a place is an error, and
so is a place without a weight. Layout rules that differ between the two:
- q, k and v are one matrix, per group of KV heads `[its query heads; k; v]`, groups stacked;
- gate and up are one matrix, `[gate; up]` of this rank's rows;
- vocabulary rows are padded to a multiple of the tensor-parallel size;
- Transformer Engine keeps the two norms of a dense layer inside the linear that follows them;
- an expert's matrices are whole on the rank that has it.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import PretrainedConfig

from mainspring.errors import ModelError
from trainer.model.families import head_dim, padded_vocab_size

StateDict = dict[str, Tensor]

QKV = "self_attention.linear_qkv"
GATE_UP = "mlp.linear_fc1"
EMBEDDING = "embedding.word_embeddings.weight"
OUTPUT = "output_layer.weight"
FINAL_NORM = "decoder.final_layernorm.weight"

HF_EMBEDDING = "model.embed_tokens.weight"
HF_OUTPUT = "lm_head.weight"
HF_FINAL_NORM = "model.norm.weight"

_SAME = {
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "mlp.linear_fc2.weight": "mlp.down_proj.weight",
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
    "input_layernorm.weight": "input_layernorm.weight",
    f"{QKV}.layer_norm_weight": "input_layernorm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    f"{GATE_UP}.layer_norm_weight": "post_attention_layernorm.weight",
    "mlp.router.weight": "mlp.gate.weight",
}
"""Inside a layer: Megatron's name -> Hugging Face's, where the two tensors are the same."""
_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
_EXPERT = re.compile(r"mlp\.experts\.local_experts\.(\d+)\.linear_fc([12])\.weight")
_GROUPED_EXPERT = re.compile(r"mlp\.experts\.linear_fc([12])\.weight(\d+)")
"""As Transformer Engine names them, whose grouped product takes all experts at once."""


def global_name(name: str, first_layer: int, first_expert: int) -> str:
    """From the name in a rank's own model, whose layers and experts it numbers from 0."""
    if not (match := _LAYER.fullmatch(name)):
        return name
    inner = match[2]
    if expert := _GROUPED_EXPERT.fullmatch(inner):
        inner = f"mlp.experts.local_experts.{expert[2]}.linear_fc{expert[1]}.weight"
    if expert := _EXPERT.fullmatch(inner):
        number = int(expert[1]) + first_expert
        inner = f"mlp.experts.local_experts.{number}.linear_fc{expert[2]}.weight"
    return f"decoder.layers.{int(match[1]) + first_layer}.{inner}"


def is_expert(name: str) -> bool:
    return ".mlp.experts." in name


def shard_dim(name: str) -> int | None:
    """The dimension tensor parallelism cuts an mcore weight along; None: every rank has all."""
    if is_expert(name):
        return None
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


def hf_names(name: str, hf: PretrainedConfig) -> list[str]:
    """The Hugging Face weights that make the mcore weight `name`, in the order of its rows."""
    outer = {EMBEDDING: HF_EMBEDDING, FINAL_NORM: HF_FINAL_NORM, OUTPUT: HF_OUTPUT}
    if name == OUTPUT and hf.tie_word_embeddings:  # the last pipeline stage's copy
        return [HF_EMBEDDING]
    if name in outer:
        return [outer[name]]
    match = _LAYER.fullmatch(name)
    assert match, name
    layer, inner = f"model.layers.{match[1]}.", match[2]
    if inner in _SAME:
        return [layer + _SAME[inner]]
    if expert := _EXPERT.fullmatch(inner):
        kinds = ("gate", "up") if expert[2] == "1" else ("down",)
        return [f"{layer}mlp.experts.{expert[1]}.{kind}_proj.weight" for kind in kinds]
    if inner == f"{GATE_UP}.weight":
        return [f"{layer}mlp.{kind}_proj.weight" for kind in ("gate", "up")]
    assert inner.startswith(f"{QKV}."), name
    kind = inner.removeprefix(f"{QKV}.")
    return [f"{layer}self_attn.{x}_proj.{kind}" for x in "qkv"]


def from_hf(
    name: str,
    state: Mapping[str, Tensor],
    hf: PretrainedConfig,
    *,
    tp_rank: int = 0,
    tp_size: int = 1,
) -> Tensor:
    """A rank's part of the mcore weight `name`, from the Hugging Face weights that make it."""
    parts = [state[hf_name] for hf_name in hf_names(name, hf)]
    if name in (EMBEDDING, OUTPUT):
        padding = padded_vocab_size(hf, tp_size) - parts[0].shape[0]
        if padding:
            parts[0] = torch.cat([parts[0], parts[0].new_zeros(padding, parts[0].shape[1])])
    if is_expert(name):
        return torch.cat(parts)
    if QKV in name and len(parts) == 3:
        fused = parts[0].new_empty(sum(len(part) for part in parts), *parts[0].shape[1:])
        for rows, part in zip(qkv_rows(hf).values(), parts, strict=True):
            fused[rows] = part
        parts = [fused]
    dim = shard_dim(name)
    if dim is not None:
        parts = [part.chunk(tp_size, dim)[tp_rank] for part in parts]
    return torch.cat(parts)


def to_hf(name: str, shards: Sequence[Tensor], hf: PretrainedConfig) -> StateDict:
    """The Hugging Face weights in the mcore weight `name`, from all ranks' parts of it in the order
    of ranks. Empty for a copy of another weight."""
    names = hf_names(name, hf)
    if name == OUTPUT and hf.tie_word_embeddings:
        return {}
    dim = shard_dim(name)
    if is_expert(name):
        shards = shards[:1]
    if len(names) == 2:
        halves = [shard.chunk(2) for shard in shards]
        return {hf_name: torch.cat([half[n] for half in halves]) for n, hf_name in enumerate(names)}
    whole = shards[0] if dim is None else torch.cat(list(shards), dim)
    if len(names) == 3:
        return {
            hf_name: whole[rows.to(whole.device)]
            for hf_name, rows in zip(names, qkv_rows(hf).values(), strict=True)
        }
    return {names[0]: whole[: hf.vocab_size] if name in (EMBEDDING, OUTPUT) else whole}


def unplaced(files: Mapping[str, Path], placed: set[str]) -> None:
    """`files`: the file of each weight of a model. Raises ModelError for one that has no place in
    ours."""
    if left := sorted(files.keys() - placed):
        raise ModelError(
            f"weights {files[left[0]]}: weight {left[0]} has no place in the trained model",
            remedy="expected the weights that its config.json describes",
        )
