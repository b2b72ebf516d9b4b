"""Warm-start batches: tokenised as a rollout is, weighted where the model will write."""

import hashlib
import random

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from bundled.forms import BUNDLED_AGENT
from bundled.generator import make_instances
from bundled.model import make_tokenizer
from bundled.served_text import ServedText
from bundled.trajectories import Writer
from bundled.warm_start_data import copy_batch, sequences_of, supervised_batch
from mainspring.agents.bash_block import SUBMIT_SENTINEL, parse_bash_block
from mainspring.agents.protocol import Command

TOKENIZER = "b58fa0e17e99e5c3c70d16875328c0de64e409625ec22250352e0e83d84c7736"
THREE_BATCHES = "26fe44ce72100d00411fa49ef979474db528014df59e11cf82eb303c47860752"
"""Digests of 2026-11-27, before other agents could be taught. They change with the quickstart."""


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


@pytest.fixture(scope="module")
def writer(tokenizer: PreTrainedTokenizerFast) -> Writer:
    return Writer(BUNDLED_AGENT, text=ServedText(tokenizer))


def test_copied_segments_recur_and_only_what_can_be_copied_counts() -> None:
    for seed in range(10):
        for sequence in copy_batch(random.Random(seed), vocab_size=600, batch_size=3):
            ids, weights = sequence.token_ids, sequence.weights
            period = int((weights == 0).sum()) - 1
            assert 3 <= period <= len(ids) // 2
            np.testing.assert_array_equal(ids[period:], ids[:-period])
            assert (weights[period + 1 :] == 1).all()
            assert ids.min() >= 3 and ids.max() < 600
            assert ids.dtype == np.int32 and weights.dtype == np.float32


def test_a_rollout_is_the_chat_template_of_its_messages(
    tokenizer: PreTrainedTokenizerFast, writer: Writer
) -> None:
    (instance,) = make_instances(0, "train", 1)
    written = writer.rollout(instance, instance.fix)
    (sequence,) = sequences_of(written.calls, 0.2)
    messages = [{"role": m.role.value, "content": m.text} for m in written.requests[-1].messages]
    messages.append({"role": "assistant", "content": written.calls[-1].text})
    whole = tokenizer.apply_chat_template(messages, tokenize=False)
    assert tokenizer.decode(sequence.token_ids) == str(whole).removesuffix("\n")
    assert sequence.token_ids[-1] == tokenizer.eos_token_id


def test_weight_one_is_exactly_what_the_model_writes(
    tokenizer: PreTrainedTokenizerFast, writer: Writer
) -> None:
    (instance,) = make_instances(0, "train", 1)
    calls = writer.rollout(instance, instance.fix).calls
    (sequence,) = sequences_of(calls, 0.2)
    assert set(np.unique(sequence.weights)) == {np.float32(0.2), np.float32(1.0)}
    written = tokenizer.decode(sequence.token_ids[sequence.weights == 1])
    assert written == "".join(f"{call.text}<|im_end|>" for call in calls)


def test_supervised_batches_depend_on_the_generator_alone(
    tokenizer: PreTrainedTokenizerFast, writer: Writer
) -> None:
    one, again, other = (
        supervised_batch(random.Random(seed), writer, 4, 0.2) for seed in (0, 0, 1)
    )
    assert [s.token_ids.tolist() for s in one] == [s.token_ids.tolist() for s in again]
    assert [s.token_ids.tolist() for s in one] != [s.token_ids.tolist() for s in other]
    for sequence in one:
        assert len(sequence.token_ids) == len(sequence.weights) < 300
        last_reply = str(tokenizer.decode(sequence.token_ids)).split("<|im_start|>assistant\n")[-1]
        action = parse_bash_block(last_reply.removesuffix("<|im_end|>"))
        assert action == Command(f"echo {SUBMIT_SENTINEL}")


def test_the_quickstarts_tokenizer_and_batches_are_these(
    tokenizer: PreTrainedTokenizerFast, writer: Writer
) -> None:
    """So its weights are, too: what other agents are taught changes none of them."""
    backend = tokenizer.backend_tokenizer.to_str()
    assert hashlib.sha256(backend.encode()).hexdigest() == TOKENIZER
    batches = hashlib.sha256()
    for step in range(3):
        rng = random.Random(f"warm-start/7/{step}")
        for sequence in supervised_batch(rng, writer, 8, 0.2):
            batches.update(sequence.token_ids.tobytes())
            batches.update(sequence.weights.tobytes())
        batches.update(repr(rng.random()).encode())
    assert batches.hexdigest() == THREE_BATCHES
