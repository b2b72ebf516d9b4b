"""Architectures of transformers that no list names: served with the model's log-probs, or refused.

Tiny random models, each saved as save_pretrained does. What the CPU engine serves is compared with
the model's own forward, beside another request and cut into passes; what it cannot compute is
refused in one sentence that names the architecture. Experts are updated by names of files.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from engine.model import forward_check
from engine.model.served_model import ServedModel
from engine.scheduler import Scheduler
from engine.sequences import SamplingOptions, Sequence
from infra.policy.model.weight_files import weights_digest
from mainspring.errors import ModelError
from mainspring.model_folder.weights import SINGLE
from tests.infra.policy.tiny_model import make_tokenizer

VOCAB = 320
TOLERANCE = 1e-4
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
SERVED = EXPERTS | {
    "qwen2": {k: v for k, v in BASE.items() if k != "head_dim"},
    "qwen3": BASE,
    "llama": BASE,
    "mistral": BASE | {"sliding_window": None},
    "glm4": BASE,
    "phi3": BASE,
    "olmo2": BASE,
    "granite": BASE,
    "smollm3": BASE,
    "gemma": BASE,
    "gpt2": OLD | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256},
}
HEADS = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 16}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "lfm2": (BASE | {"layer_types": ["conv", "full_attention"]}, "layer_types with 'conv'"),
    "lfm2_moe": (
        BASE | NAMED_EXPERTS | {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
        "layer_types with 'conv'",
    ),
    "granitemoehybrid": (
        BASE
        | FOUR_EXPERTS
        | HEADS
        | {"layer_types": ["mamba", "attention"], "mamba_chunk_size": 16},
        "layer_types with ",
    ),
    "minimax": (
        BASE | FOUR_EXPERTS | {"layer_types": ["linear_attention", "full_attention"]},
        "layer_types with 'linear_attention'",
    ),
    "llama4_text": (
        BASE | FOUR_EXPERTS | {"intermediate_size_mlp": 48},
        "layer_types with 'chunked_attention'",
    ),
    "mistral": (BASE | {"sliding_window": 4096}, "its attention uses sliding_window"),
    "gemma2": (BASE, "layer_types with 'sliding_attention'"),
    "gemma3_text": (BASE, "layer_types with 'sliding_attention'"),
    "gpt_oss": (BASE | FOUR_EXPERTS, "layer_types with 'sliding_attention'"),
    "diffllama": (BASE, "its layer 0 computes attention 2 times"),
    "doge": (BASE, "its attention has a mask of its own"),
    "nemotron": (BASE, "does not call attention as this engine gives it"),
    "recurrent_gemma": (BASE | {"lru_width": 32}, "cannot run on the CPU engine: "),
    "falcon": (
        OLD | {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
        "cannot run on the CPU engine: ",
    ),
    "bloom": (OLD | {"hidden_size": 32, "n_layer": 2, "n_head": 4}, "cannot run on the CPU engine"),
    "mpt": (OLD | {"d_model": 32, "n_layers": 2, "n_heads": 4}, "cannot run on the CPU engine: "),
    "mamba2": (
        OLD
        | {
            **{"hidden_size": 32, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 8},
            **{"state_size": 16, "n_groups": 1, "chunk_size": 16},
        },
        "cannot run on the CPU engine: ",
    ),
    "xlstm": (
        OLD | {"hidden_size": 32, "num_blocks": 2, "num_heads": 4},
        "cannot run on the CPU engine: ",
    ),
    "llama": (
        BASE | {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
        "rope_type 'dynamic'",
    ),
}


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


def largest_difference(served: ServedModel, directory: Path) -> float:
    """Of sampled tokens' log-probs, of two requests that run beside each other."""
    scheduler = Scheduler(served, weight_version="0", max_batch=2)
    sequences = [
        Sequence(
            str(n), list(ids), SamplingOptions(max_new_tokens=6, ignore_eos=True), frozenset(), n
        )
        for n, ids in ((20, range(5, 25)), (9, range(40, 49)))
    ]
    for sequence in sequences:
        scheduler.submit(sequence)
    while scheduler.busy:
        scheduler.step()
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    largest = 0.0
    for sequence in sequences:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([sequence.ids]), use_cache=False).logits[0]
        whole = torch.log_softmax(logits.float(), -1)
        for place, (token, logprob) in enumerate(
            zip(sequence.output_ids, sequence.logprobs, strict=True), sequence.prompt_tokens
        ):
            largest = max(largest, abs(float(whole[place - 1, token]) - logprob))
    return largest


@pytest.mark.parametrize("family", SERVED)
def test_what_is_served_has_the_models_own_log_probs(family: str, tmp_path: Path) -> None:
    directory = save(tmp_path / "model", family, SERVED[family])
    served = ServedModel(directory, 64)
    assert largest_difference(served, directory) < TOLERANCE
    assert served.weights_digest == weights_digest(directory)


@pytest.mark.parametrize("family", REFUSED)
def test_what_the_engine_cannot_compute_is_refused_by_name(family: str, tmp_path: Path) -> None:
    fields, words = REFUSED[family]
    directory = save(tmp_path / "model", family, fields)
    architecture = json.loads((directory / "config.json").read_text())["architectures"][0]
    with pytest.raises(ModelError) as refused:
        ServedModel(directory, 64)
    message = refused.value.message
    assert words in message and str(directory) in message and "\n" not in message
    assert refused.value.remedy
    assert architecture in message or family == "llama"


@pytest.mark.parametrize("family", EXPERTS)
def test_new_weights_of_experts_are_served(family: str, tmp_path: Path) -> None:
    """By the names of files: of a folder, and of tensors that a trainer sends."""
    first = save(tmp_path / "first", family, EXPERTS[family])
    second = save(tmp_path / "second", family, EXPERTS[family], seed=1)
    served = ServedModel(first, 64)
    served.load_weights(first)
    assert served.weights_digest == weights_digest(first)
    served.load_weights(second)
    assert served.weights_digest == weights_digest(second) != weights_digest(first)
    assert largest_difference(served, second) < TOLERANCE
    served.take_weights(load_file(first / SINGLE))
    assert served.weights_digest == weights_digest(first)
    assert largest_difference(served, first) < TOLERANCE


def test_weights_of_experts_that_do_not_fit_change_nothing(tmp_path: Path) -> None:
    model = save(tmp_path / "model", "qwen3_moe", EXPERTS["qwen3_moe"])
    served = ServedModel(model, 64)
    before = served.weights_digest
    whole = load_file(model / SINGLE)
    down = "model.layers.1.mlp.experts.2.down_proj.weight"
    for change, words in (
        ({name: weight for name, weight in whole.items() if name != down}, "experts"),
        (whole | {down: whole[down][:-1].contiguous()}, "experts"),
        (whole | {"model.extra": torch.ones(2)}, "model.extra"),
        ({name: weight for name, weight in whole.items() if "norm" not in name}, "norm"),
    ):
        with pytest.raises(ModelError) as refused:
            served.take_weights(change)
        assert words in str(refused.value), refused.value
    assert served.weights_digest == before
    assert largest_difference(served, model) < TOLERANCE
    save_file({"model.norm.weight": torch.ones(32)}, model / SINGLE)
    with pytest.raises(ModelError, match="is missing"):
        served.load_weights(model)
    assert served.weights_digest == before


def test_a_layer_that_leaves_attention_out_is_seen(tmp_path: Path) -> None:
    """The control: what no config tells, the comparison does."""
    served = ServedModel(save(tmp_path / "model", "qwen3", BASE), 64)
    assert forward_check.problem(served, served._model) is None
    mlp = served._model.model.layers[1].mlp
    seen: list[int] = []

    def leak(module: object, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        seen.append(output.shape[1])  # a running mean over the row, as a state has
        return output + output.cumsum(1) * 1e-3

    hook = mlp.register_forward_hook(leak)
    words = forward_check.problem(served, served._model)
    assert seen and words is not None and "its log-probs differ by " in words
    hook.remove()
    assert forward_check.problem(served, served._model) is None
    with torch.no_grad():
        served._model.lm_head.weight[0] = float("nan")
    assert forward_check.problem(served, served._model) == "its log-probs are no numbers"


def test_a_folder_of_several_parts_is_refused_in_one_sentence(tmp_path: Path) -> None:
    directory = save(tmp_path / "model", "qwen3", BASE)
    inner = json.loads((directory / "config.json").read_text())
    composite = {"model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"]}
    (directory / "config.json").write_text(json.dumps(composite | {"text_config": inner}))
    with pytest.raises(ModelError) as refused:
        ServedModel(directory, 64)
    assert "\n" not in refused.value.message and len(refused.value.message) < 400


def test_more_context_than_the_model_has_is_refused(tmp_path: Path) -> None:
    directory = save(tmp_path / "model", "qwen3", BASE)
    assert ServedModel(directory).context_length == 256
    with pytest.raises(ModelError, match=r"context length 257 .* made for 256 tokens"):
        ServedModel(directory, 257)
