"""The fsdp engine against Hugging Face and autograd, for many families."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from mainspring.errors import ModelError
from tests.trainer.any_models import FAMILIES, REFUSED, samples_of, save_model
from tests.trainer.fsdp_jobs import gradients_of
from trainer.model.hf_directory import load_weights
from trainer.process.rank import TrainerRank

LR = 5e-3


@pytest.mark.parametrize("kind", FAMILIES)
def test_passes_and_steps_equal_hugging_face(
    kind, make_config, oracle, oracle_step, tmp_path
) -> None:
    model = save_model(kind, tmp_path / "model")
    samples = samples_of(9, 30)
    config = make_config(engine="fsdp", micro_batch_tokens=64)
    rank = TrainerRank(config, tmp_path / "model")
    found = rank.logprobs(samples)
    for index, sample in enumerate(samples):
        with torch.no_grad():
            expected = oracle(model, sample).numpy()
        mask = sample.action_mask
        assert np.abs(found[index][mask] - expected[mask[1:]]).max() < 1e-5
        assert not found[index][~mask].any()
    mine = gradients_of(rank, config, [s for s in samples if s.carries_advantage])
    still = torch.optim.SGD(model.parameters(), lr=0.0)
    assert mine["loss"] == pytest.approx(oracle_step(model, samples, still), abs=1e-5)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert float((mine["grads"][name] - parameter.grad).abs().max()) < 1e-5, name
    adamw = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(3):
        expected = oracle_step(model, samples, adamw)
        metrics = rank.train_step(samples, step=step, current_version=0)
        assert metrics.loss == pytest.approx(expected, abs=1e-4)
    _export_equals(rank, model, tmp_path)


def _export_equals(rank: TrainerRank, model, tmp_path: Path) -> None:
    """By its names, and by logits of the model that transformers loads from it."""
    out = tmp_path / "out"
    rank.export_hf(out)
    assert load_weights(out).keys() == load_weights(tmp_path / "model").keys()
    assert (out / "tokenizer.json").read_text() == '{"kept": "as it is"}'
    again, info = AutoModelForCausalLM.from_pretrained(
        out, dtype=torch.float32, output_loading_info=True
    )
    assert not any(info.values()), info
    trained = dict(model.named_parameters())
    for name, parameter in again.named_parameters():
        assert float((parameter - trained[name]).abs().max()) < 0.05 * LR, name
    for name, buffer in model.named_buffers():
        assert torch.equal(dict(again.named_buffers())[name], buffer), name
    ids = torch.arange(3, 33)[None]
    loaded = TrainerRank(rank._campaign, out)
    with torch.no_grad():
        logits = torch.log_softmax(again.eval()(ids, use_cache=False).logits[0, :-1], -1)
    expected = logits.gather(1, ids[0, 1:, None])[:, 0].numpy()
    sample = samples_of(30, 31, num=1)[0]
    sample.token_ids[:] = ids[0].numpy()
    mask = sample.action_mask
    assert np.abs(loaded.logprobs([sample])[0][mask] - expected[mask[1:]]).max() < 1e-5


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_5_text", "gemma2", "gpt_oss"])
def test_sequences_alone_and_packed_have_one_gradient(kind, make_config, tmp_path) -> None:
    save_model(kind, tmp_path)
    samples = samples_of(34, 60)
    found = []
    for tokens in (64, 8192):  # of which the first takes no two of them
        config = make_config(engine="fsdp", micro_batch_tokens=tokens)
        found.append(gradients_of(TrainerRank(config, tmp_path), config, samples))
    alone, packed = found
    assert alone["loss"] == pytest.approx(packed["loss"], abs=1e-5)
    for name, grad in alone["grads"].items():
        assert float((grad - packed["grads"][name]).abs().max()) < 1e-5, name


@pytest.mark.parametrize("kind", REFUSED)
def test_what_would_be_computed_wrongly_is_refused(kind, make_config, tmp_path) -> None:
    save_model(kind, tmp_path)
    with pytest.raises(ModelError, match=REFUSED[kind][1]) as raised:
        TrainerRank(make_config(engine="fsdp"), tmp_path)
    assert str(tmp_path) in raised.value.message
