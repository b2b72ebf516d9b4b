"""Warm-start batches: tokenised as a rollout is, weighted where the model will write."""

import random

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from bundled.generator import make_instances
from bundled.model import make_tokenizer
from bundled.trajectories import rollout_messages
from bundled.warm_start_data import copy_batch, encode_rollout, supervised_batch
from mainspring.agents.bash_block import SUBMIT_SENTINEL, parse_bash_block
from mainspring.agents.protocol import Command


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


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
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    (instance,) = make_instances(0, "train", 1)
    messages = rollout_messages(instance, instance.fix)
    sequence = encode_rollout(tokenizer, messages, 0.2)
    whole = tokenizer.apply_chat_template([dict(m) for m in messages], tokenize=False)
    assert tokenizer.decode(sequence.token_ids) == str(whole).removesuffix("\n")
    assert sequence.token_ids[-1] == tokenizer.eos_token_id


def test_weight_one_is_exactly_what_the_model_writes(tokenizer: PreTrainedTokenizerFast) -> None:
    (instance,) = make_instances(0, "train", 1)
    messages = rollout_messages(instance, instance.fix)
    sequence = encode_rollout(tokenizer, messages, 0.2)
    assert set(np.unique(sequence.weights)) == {np.float32(0.2), np.float32(1.0)}
    written = tokenizer.decode(sequence.token_ids[sequence.weights == 1])
    replies = [m["content"] for m in messages if m["role"] == "assistant"]
    assert written == "".join(f"{reply}<|im_end|>" for reply in replies)


def test_supervised_batches_depend_on_the_generator_alone(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    one, again, other = (
        supervised_batch(random.Random(seed), tokenizer, 4, 0.2) for seed in (0, 0, 1)
    )
    assert [s.token_ids.tolist() for s in one] == [s.token_ids.tolist() for s in again]
    assert [s.token_ids.tolist() for s in one] != [s.token_ids.tolist() for s in other]
    for sequence in one:
        assert len(sequence.token_ids) == len(sequence.weights) < 300
        last_reply = tokenizer.decode(sequence.token_ids).split("<|im_start|>assistant\n")[-1]
        action = parse_bash_block(last_reply.removesuffix("<|im_end|>"))
        assert action == Command(f"echo {SUBMIT_SENTINEL}")
