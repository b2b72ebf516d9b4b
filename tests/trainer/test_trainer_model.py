import json
import resource

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from mainspring.config.training.parallel import Device, ParallelConfig
from mainspring.errors import ModelError
from mainspring.trajectories.sequences import MaskedSequence
from tests.trainer.shards import hf_to_mcore, load
from trainer.model import token_logprobs
from trainer.model.convert import QKV
from trainer.model.families import check_divides
from trainer.model.micro_batch import micro_batches
from trainer.model.policy_model import build_model
from trainer.model.token_logprobs import OutputLayer

ON_CPU = ParallelConfig(device=Device.CPU)
CASES = [
    ("qwen3", True),
    ("qwen3", False),
    ("qwen2", True),
    ("llama", False),
]


def rows_of(lengths: list[int], vocab_size: int) -> list[MaskedSequence]:
    rng = np.random.default_rng(0)
    rows = []
    for length in lengths:
        mask = rng.random(length) < 0.7
        mask[0], mask[-1] = False, True
        rows.append(MaskedSequence(rng.integers(0, vocab_size, length).astype(np.int32), mask))
    return rows


def expected_of(reference: PreTrainedModel, rows: list[MaskedSequence], temperature: float):
    """Log-probs and entropies by plain Hugging Face, one sequence at a time."""
    found = []
    for row in rows:
        ids = torch.from_numpy(row.token_ids.astype(np.int64))[None]
        full = torch.log_softmax(reference(input_ids=ids).logits[0, :-1] / temperature, -1)
        wanted = torch.from_numpy(row.mask[1:])
        logprobs = full.gather(1, ids[0, 1:, None])[:, 0][wanted]
        found.append(torch.stack([logprobs, -(full.exp() * full).sum(-1)[wanted]]))
    return torch.cat(found, 1)


@pytest.mark.parametrize(("family", "tied"), CASES)
def test_packed_log_probs_and_gradients_equal_hugging_face(
    family, tied, make_model, alone, monkeypatch
):
    reference, _ = make_model(family, tied=tied)
    monkeypatch.setattr(
        token_logprobs, "CHUNK_BYTES", 97 * 4 * 20
    )  # several chunks, one of them short
    model = build_model(reference.config, ON_CPU, alone, temperature=0.7)
    load(model, reference.state_dict(), reference.config)
    rows = rows_of([40, 2, 17, 31], reference.config.vocab_size)
    [batch] = micro_batches(rows, ON_CPU, alone)
    ours = batch.through(model)
    theirs = expected_of(reference, [rows[n] for n in batch.share], 0.7)
    assert (ours - theirs).abs().max() < 1e-5
    coefficients = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(1))
    for found, parameters in ((ours, model), (theirs, reference)):
        parameters.zero_grad()
        (found * coefficients).sum().backward()
    grads = {name: p.grad for name, p in reference.named_parameters()}
    names = [name for name, _ in model.named_parameters()]
    expected = hf_to_mcore(grads, reference.config, names)
    largest = max(float(grad.abs().max()) for grad in expected.values())
    for name, parameter in model.named_parameters():
        assert (parameter.grad - expected[name]).abs().max() < 1e-5 * largest, name


def test_a_wrong_qkv_layout_is_seen(make_model, alone):
    """The control: the comparison above can fail."""
    reference, _ = make_model("qwen3")
    model = build_model(reference.config, ON_CPU, alone)
    load(model, reference.state_dict(), reference.config)
    parts = [reference.state_dict()[f"model.layers.0.self_attn.{x}_proj.weight"] for x in "qkv"]
    with torch.no_grad():
        model.get_parameter(f"decoder.layers.0.{QKV}.weight").copy_(torch.cat(parts))
    [batch] = micro_batches(rows_of([40], 97), ON_CPU, alone)
    ours = batch.through(model)
    assert (ours - expected_of(reference, rows_of([40], 97), 1.0)).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_attention_heads": 3}, "num_attention_heads"),
        ({"num_key_value_heads": 1}, "num_key_value_heads"),
    ],
)
def test_sizes_that_cannot_be_split_are_refused_by_name(change, named, make_model):
    reference, directory = make_model("qwen3")
    config = type(reference.config)(**(json.loads((directory / "config.json").read_text())))
    for field, value in change.items():
        setattr(config, field, value)
    with pytest.raises(ModelError, match=named):
        check_divides(config, ParallelConfig(device=Device.CPU, tensor_parallel=2))


def test_logits_of_chunks_stay_small():
    """32k wanted tokens and a vocabulary of 152k: 20 GB of logits at once."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    hidden = torch.randn(4_000, 16, requires_grad=True)
    weight = torch.randn(152_000, 16, requires_grad=True)
    targets = torch.randint(0, 152_000, (4_000,))
    output = OutputLayer(vocab_size=152_000, temperature=1.0, tp_group=None)
    found, _ = token_logprobs.token_logprobs(hidden, weight, targets, output)
    found.sum().backward()
    used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert used < 1 << 30, f"{used / 2**20:.0f} MiB, logits alone would take 2,320 MiB"
