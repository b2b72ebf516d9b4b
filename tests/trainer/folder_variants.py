"""Model folders as people, tools and accidents leave them, and how each has to be judged.

A variant is one change to a small whole folder. `words` is None where it is a model like any other;
else a part of the one sentence that plan, checklist, engine and trainer give. `trained_only`: the
CPU engine serves it, as transformers computes it, and the trainer does not train it.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from mainspring.model_folder.weights import INDEX, SINGLE

EMBEDDING = "model.embed_tokens.weight"
UP = "model.layers.1.mlp.up_proj.weight"
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    change: Callable[[Path], object]
    words: str | None = None
    family: str = "qwen3"
    trained_only: bool = False
    tied: bool = True


def edit(file: Path, **fields: Any) -> None:
    """Where a field is `...`, it is left out."""
    content = json.loads(file.read_text()) | fields
    file.write_text(json.dumps({k: v for k, v in content.items() if v is not ...}))


def has(words: str | None = None, *, family: str = "qwen3", **fields: Any) -> Variant:
    """config.json with other fields."""
    told = json.dumps({k: "left out" if v is ... else v for k, v in fields.items()})
    name = f"{family} {told}"[:150]
    return Variant(name, lambda d: edit(d / "config.json", **fields), words, family)


def served(words: str, *, family: str = "qwen3", **fields: Any) -> Variant:
    found = has(words, family=family, **fields)
    return Variant(found.name, found.change, words, family, trained_only=True)


def rope(words: str | None = None, *, family: str = "llama", **table: Any) -> Variant:
    """Under the key of transformers 5."""
    return has(words, family=family, rope_parameters=table)


def text(name: str, content: str | bytes, words: str) -> Variant:
    raw = content if isinstance(content, bytes) else content.encode()
    return Variant(name, lambda d: (d / "config.json").write_bytes(raw), words)


def weights(
    name: str,
    change: Callable[[dict[str, torch.Tensor]], object],
    words: str | None = None,
    *,
    family: str = "qwen3",
    tied: bool = True,
) -> Variant:
    def apply(directory: Path) -> None:
        found = load_file(directory / SINGLE)
        change(found)
        save_file({k: v.contiguous() for k, v in found.items()}, directory / SINGLE)

    return Variant(name, apply, words, family, tied=tied)


def index(directory: Path, shards: int = 2, *, keep_single: bool = False) -> None:
    """The same weights in several files."""
    found = sorted(load_file(directory / SINGLE).items())
    placed: dict[str, str] = {}
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = dict(found[number::shards])
        save_file(part, directory / file)
        placed |= dict.fromkeys(part, file)
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    if not keep_single:
        (directory / SINGLE).unlink()


def twice(directory: Path) -> None:
    index(directory)
    first, second = sorted(directory.glob("model-*.safetensors"))
    save_file(load_file(second) | load_file(first), second)


def quantized(method: str) -> Variant:
    table = {"quant_method": method, "bits": 4}
    return has(f"quantization_config ({method}) cannot be trained", quantization_config=table)


def biased(field: str, *modules: str) -> Variant:
    """With the biases that transformers makes for the field."""

    def apply(directory: Path) -> None:
        edit(directory / "config.json", **{field: True})
        found = load_file(directory / SINGLE)
        for layer in range(2):
            for name in (f"model.layers.{layer}.{module}" for module in modules):
                found[f"{name}.bias"] = torch.full(found[f"{name}.weight"].shape[:1], 0.1)
        save_file(found, directory / SINGLE)

    return Variant(field, apply, f"{field} = True cannot be trained", "llama", trained_only=True)


def tokens(directory: Path, number: int) -> None:
    file = directory / "tokenizer.json"
    content = json.loads(file.read_text())
    content["added_tokens"].append(content["added_tokens"][0] | {"id": number, "content": "<more>"})
    file.write_text(json.dumps(content))


CONFIGS = (
    has(),
    has(family="qwen2"),
    has(family="llama"),
    # What is left out is what transformers takes.
    has(architectures=...),
    has(rms_norm_eps=..., hidden_act=..., use_cache=..., attention_bias=...),
    has(dtype=...),
    has(rope_parameters=...),
    has(rope_parameters=None, rope_theta=5000.0),
    has(rope_parameters=..., rope_scaling=None, rope_theta=10000),
    has("vocab_size = None, expected a whole number above 0", vocab_size=...),
    has("hidden_size = None", hidden_size=...),
    has("num_hidden_layers = None", num_hidden_layers=...),
    has("which num_key_value_heads = 32 does not divide", num_key_value_heads=...),
    has(family="llama", head_dim=None),
    # Values of another kind.
    has("head_dim = None, expected", head_dim=None),
    has("hidden_size = '32', expected", hidden_size="32"),
    has("hidden_size = 32.0, expected", hidden_size=32.0),
    has("hidden_size = True, expected", hidden_size=True),
    has("num_hidden_layers = 0, expected", num_hidden_layers=0),
    has("num_hidden_layers = -2, expected", num_hidden_layers=-2),
    has(f"vocab_size = {10**30}, expected", vocab_size=10**30),
    has("rms_norm_eps = nan, expected", rms_norm_eps=float("nan")),
    has("rms_norm_eps = inf, expected", rms_norm_eps=float("inf")),
    has("rms_norm_eps = 1, expected", rms_norm_eps=1),
    has("rms_norm_eps = '1e-6', expected", rms_norm_eps="1e-6"),
    has("tie_word_embeddings = None, expected", tie_word_embeddings=None),
    has("use_cache = 'yes', expected", use_cache="yes"),
    has("max_position_embeddings = 2048.5, expected", max_position_embeddings=2048.5),
    has("id2label = 'x', expected", id2label="x"),
    has("architectures = 'Qwen3ForCausalLM', expected a list", architectures="Qwen3ForCausalLM"),
    # Sizes that do not fit each other.
    has("num_attention_heads = 4, which num_key_value_heads = 3 does not", num_key_value_heads=3),
    has(
        "which num_attention_heads = 3 does not divide",
        family="llama",
        num_attention_heads=3,
        num_key_value_heads=3,
    ),
    has("heads of 7 values, expected an even number", head_dim=7),
    has("weight model.layers.0.self_attn.q_proj.weight is [32, 32], expected", head_dim=16),
    has("config.json has vocab_size = 300, the embedding", vocab_size=300),
    has("model.layers.0.mlp.gate_proj.weight is [64, 32], expected", intermediate_size=96),
    has(
        "weight model.layers.2.self_attn.q_proj.weight is missing",
        num_hidden_layers=3,
        layer_types=...,
    ),
    has("model.layers.1.input_layernorm.weight has no place", num_hidden_layers=1, layer_types=...),
    # Kinds of models.
    has("names no model_type", model_type=...),
    has("names no model_type (it has 3)", model_type=3),
    has("architecture BertForMaskedLM generates no text", architectures=["BertForMaskedLM"]),
    has("architectures = ['LlamaForCausalLM'] with model", architectures=["LlamaForCausalLM"]),
    has("text_config (a model of several parts)", text_config={"model_type": "qwen3"}),
    has("auto_map cannot be trained", auto_map={"AutoModelForCausalLM": "own.Own"}),
    quantized("fp8"),
    quantized("gptq"),
    quantized("awq"),
    has("dtype = 'int8' cannot be trained", dtype="int8"),
    has("dtype = 'torch.bfloat16' cannot", dtype="torch.bfloat16"),
    has("dtype = 'float32' with torch_dtype = 'bfloat16'", torch_dtype="bfloat16"),
    has(dtype=..., torch_dtype="float16"),
    # Attention and layers.
    biased(
        "attention_bias",
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
    ),
    has(family="llama", attention_bias=False),
    has(family="qwen2", attention_bias=False),
    biased("mlp_bias", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    served("hidden_act = 'gelu' cannot be trained", hidden_act="gelu"),
    served("use_sliding_window = True cannot", use_sliding_window=True, sliding_window=8),
    has(use_sliding_window=False, sliding_window=8),
    has(use_sliding_window=..., sliding_window=8),
    served(
        "layer_types with 'sliding_attention'",
        layer_types=["full_attention", "sliding_attention"],
        use_sliding_window=True,
        sliding_window=8,
    ),
    has("1 layer_types, expected num_hidden_layers = 2", layer_types=["full_attention"]),
    has(layer_types=["full_attention"] * 2),
    has(family="llama", sliding_window=4),
    has("partial_rotary_factor = 0.5 cannot", family="llama", partial_rotary_factor=0.5),
    has(family="llama", partial_rotary_factor=1.0),
    has("eos_token_id = 999 with vocab_size", eos_token_id=999),
    has("pad_token_id = 999 with vocab_size", pad_token_id=999),
    has(eos_token_id=[1, 2]),
)

ROPES = (
    rope(rope_type="default", rope_theta=10000.0),
    rope(rope_type="linear", factor=2.0, rope_theta=10000.0),
    rope(rope_theta=500.0, **LLAMA3),
    rope(family="qwen3", rope_theta=500.0, **LLAMA3),
    has(family="llama", rope_parameters=..., rope_scaling={"type": "linear", "factor": 4.0}),
    has(family="llama", rope_parameters=..., rope_theta=500.0, rope_scaling=LLAMA3),
    rope("rope_type 'dynamic' cannot be trained or", rope_type="dynamic", factor=2.0),
    rope("rope_type 'ntk' cannot be trained or", rope_type="ntk"),
    has(
        "rope_type 'su' cannot",
        family="llama",
        rope_parameters=...,
        rope_scaling={"type": "su", "factor": 2.0},
    ),
    has(
        "rope_type 'mrope' cannot",
        rope_parameters=...,
        rope_scaling={"type": "mrope", "mrope_section": [1, 1, 2]},
    ),
    served(
        "mrope_section cannot",
        family="llama",
        rope_parameters={"rope_type": "default", "mrope_section": [1, 1, 2]},
    ),
    rope("rope_type 'longrope' cannot", rope_type="longrope", short_factor=[1], long_factor=[1, 2]),
    rope("rope_type = 3, expected a text", rope_type=3),
    rope("rope_type 'linear' without factor", rope_type="linear"),
    rope("factor = 0 of rope_type 'linear', expected", rope_type="linear", factor=0),
    rope("factor = -1.0 of rope_type 'linear'", rope_type="linear", factor=-1.0),
    rope("factor = '2' of rope_type 'linear'", rope_type="linear", factor="2"),
    rope("factor = True of rope_type 'linear'", rope_type="linear", factor=True),
    rope("factor = [2.0] of rope_type 'linear'", rope_type="linear", factor=[2.0]),
    rope("without low_freq_factor", rope_type="llama3", factor=4.0),
    rope("is not above its low_freq_factor", **(LLAMA3 | {"low_freq_factor": 4.0})),
    rope("rope_theta = 0, expected a number above 0", rope_type="default", rope_theta=0),
    rope("rope_theta = None, expected", rope_type="default", rope_theta=None),
    rope("for each kind of layers (full_attention)", full_attention={"rope_theta": 1.0}),
    has("rope_scaling = 'linear', expected an object", rope_scaling="linear"),
    has("rope_scaling = [1.0], expected an object", rope_scaling=[1.0]),
    has(
        "rope_scaling and rope_parameters differ",
        rope_scaling={"type": "linear", "factor": 2.0},
        rope_parameters={"rope_type": "linear", "factor": 3.0},
    ),
    has(
        "rope_theta = 5.0 and, in its rope parameters",
        rope_theta=5.0,
        rope_parameters={"rope_theta": 6.0},
    ),
    has(
        "rope_type = 'linear' and type = 'yarn' differ",
        rope_parameters={"rope_type": "linear", "type": "yarn", "factor": 2.0},
    ),
    *(
        served(f"rope_type {kind!r} cannot be trained", family="llama", **fields)
        for kind, fields in (
            (
                "yarn",
                {
                    "rope_parameters": ...,
                    "rope_scaling": {
                        "type": "yarn",
                        "factor": 4.0,
                        "original_max_position_embeddings": 512,
                    },
                },
            ),
            ("yarn", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4}}),
        )
    ),
)

FILES = (
    text("no JSON", "{", "config.json: cannot be read"),
    text("a list", "[]", "expected a JSON object"),
    text("null", "null", "expected a JSON object"),
    text("not UTF-8", b'{"model_type": "\xff"}', "config.json: cannot be read"),
    text("an integer of 5,000 digits", '{"vocab_size": ' + "9" * 5000 + "}", "cannot be read"),
    text("nested", "[" * 100_000, "nested too deeply"),
    text("a composite", '{"text_config": {"vocab_size": 9}}', "names no model_type"),
    Variant("no config", lambda d: (d / "config.json").unlink(), "no config.json"),
    Variant("shards", index),
    Variant("an older file beside shards", lambda d: index(d, keep_single=True), "lies beside"),
    Variant("a weight twice", twice, f"{EMBEDDING} is in model-00001"),
    Variant(
        "an adapter beside",
        lambda d: save_file({"lora": torch.ones(2)}, d / "adapter_model.safetensors"),
    ),
    Variant(
        "an adapter alone",
        lambda d: (d / SINGLE).rename(d / "adapter_model.safetensors"),
        "adapter_model.safetensors is not loaded",
    ),
    Variant(
        "torch's format",
        lambda d: (d / SINGLE).rename(d / "pytorch_model.bin"),
        "pytorch_model.bin is not",
    ),
    weights(
        "rotary",
        lambda w: w.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}),
    ),
    weights(
        "foreign", lambda w: w.update({"score.weight": torch.ones(4)}), "score.weight has no place"
    ),
    weights("missing", lambda w: w.pop(UP), f"{UP} is missing"),
    weights("cut", lambda w: w.update({UP: w[UP][:-1]}), f"{UP} is [63, 32], expected [64, 32]"),
    weights("in integers", lambda w: w.update({UP: w[UP].to(torch.int8)}), f"{UP} is stored as I8"),
    weights("in 64 bits", lambda w: w.update({UP: w[UP].double()}), f"{UP} is stored as F64"),
    weights("untied", lambda w: None, tied=False),
    weights(
        "no output layer",
        lambda w: w.pop("lm_head.weight"),
        "lm_head.weight is missing",
        tied=False,
    ),
    weights("tied, output twice", lambda w: w.update({"lm_head.weight": w[EMBEDDING].clone()})),
    weights(
        "tied, another output",
        lambda w: w.update({"lm_head.weight": w[EMBEDDING] + 1}),
        f"lm_head.weight is not {EMBEDDING}",
    ),
    weights(
        "no prefix", lambda w: w.update({"norm.weight": w.pop("model.norm.weight")}), "is missing"
    ),
    weights(
        "no biases",
        lambda w: w.pop("model.layers.0.self_attn.q_proj.bias"),
        "q_proj.bias is",
        family="qwen2",
    ),
    Variant(
        "a token without a row", lambda d: tokens(d, 320), "tokenizer.json has the token id 320"
    ),
    Variant(
        "an end without a row",
        lambda d: edit(d / "generation_config.json", eos_token_id=[2, 320]),
        "generation_config.json has eos_token_id = [2, 320]",
    ),
    Variant("another end", lambda d: edit(d / "generation_config.json", eos_token_id=[0, 2])),
)

VARIANTS = (*CONFIGS, *ROPES, *FILES)
