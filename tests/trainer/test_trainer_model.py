import json

import numpy as np
import pytest
import torch

from mainspring.errors import ModelError
from trainer.convert import QKV, hf_to_mcore
from trainer.logprobs import logprob_entropy
from trainer.model import build_model, check_supported

CPU = torch.device("cpu")

CASES = [("qwen3", True), ("qwen3", False), ("qwen2", True), ("llama", False)]


@pytest.mark.parametrize(("family", "tied"), CASES)
def test_logits_and_logprobs_equal_hugging_face(family, tied, make_model, alone):
    reference, _ = make_model(family, tied=tied)
    model = build_model(reference.config, 1, CPU)
    model.load_state_dict(hf_to_mcore(reference.state_dict(), reference.config), strict=False)
    ids = torch.randint(0, reference.config.vocab_size, (3, 40))
    with torch.no_grad():
        ours, theirs = model(ids, None, None), reference(input_ids=ids).logits
    assert (ours - theirs).abs().max() < 1e-5
    logprobs, entropy = logprob_entropy(ours[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    expected = torch.log_softmax(theirs[:, :-1].flatten(0, 1), -1)
    assert torch.allclose(logprobs, expected.gather(1, ids[:, 1:].reshape(-1, 1))[:, 0], atol=1e-5)
    assert torch.allclose(entropy, -(expected.exp() * expected).sum(-1), atol=1e-5)


def test_a_wrong_qkv_layout_is_seen(make_model, alone):
    """The control: the comparison above can fail."""
    reference, _ = make_model("qwen3")
    state = hf_to_mcore(reference.state_dict(), reference.config)
    parts = [reference.state_dict()[f"model.layers.0.self_attn.{x}_proj.weight"] for x in "qkv"]
    state[f"decoder.layers.0.{QKV}.weight"] = torch.cat(parts)
    model = build_model(reference.config, 1, CPU)
    model.load_state_dict(state, strict=False)
    ids = torch.randint(0, reference.config.vocab_size, (3, 40))
    with torch.no_grad():
        assert (model(ids, None, None) - reference(input_ids=ids).logits).abs().max() > 1e-2


def test_right_padding_changes_nothing(make_model, alone):
    reference, _ = make_model("qwen3")
    model = build_model(reference.config, 1, CPU)
    model.load_state_dict(hf_to_mcore(reference.state_dict(), reference.config), strict=False)
    ids = torch.randint(0, reference.config.vocab_size, (1, 30))
    padded = torch.cat([ids, torch.zeros(1, 20, dtype=torch.int64)], 1)
    with torch.no_grad():
        gap = (model(ids, None, None) - model(padded, None, None)[:, :30]).abs().max()
    assert gap < 1e-6


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "gemma"}, "gemma"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"num_key_value_heads": 1}, "num_key_value_heads"),
    ],
)
def test_models_that_cannot_be_trained_are_refused_by_name(change, named, make_model):
    reference, directory = make_model("qwen3")
    config = type(reference.config)(**(json.loads((directory / "config.json").read_text())))
    for field, value in change.items():
        setattr(config, field, value)
    with pytest.raises(ModelError, match=named):
        check_supported(config, 2)


def test_gradients_of_logprob_and_entropy():
    torch.manual_seed(0)
    logits = torch.randn(5, 11, requires_grad=True)
    targets = torch.randint(0, 9, (5,))
    a, b = torch.randn(5), torch.randn(5)
    logprob, entropy = logprob_entropy(logits, targets, vocab_size=9)
    (a * logprob + b * entropy).sum().backward()
    ours, logits.grad = logits.grad, None
    full = torch.log_softmax(logits[:, :9], -1)
    (a * full.gather(1, targets[:, None])[:, 0] - b * (full.exp() * full).sum(-1)).sum().backward()
    assert ours is not None and logits.grad is not None
    assert torch.allclose(ours, logits.grad, atol=1e-6)
    assert np.all(ours[:, 9:].numpy() == 0)
