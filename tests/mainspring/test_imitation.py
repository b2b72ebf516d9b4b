"""What a supervised run trains on, and in which order."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.errors import UsageError
from mainspring.trajectories.imitation import DataOrder, to_imitate, weighted
from mainspring.trajectories.imported import Chat, Tokens, read_line

sizes = st.integers(1, 40)


@given(seed=st.integers(0, 9), num_samples=sizes, batch=sizes, num_epochs=st.integers(1, 4))
def test_every_epoch_takes_every_sample_once(
    seed: int, num_samples: int, batch: int, num_epochs: int
) -> None:
    batch = min(batch, num_samples)
    order = DataOrder(seed, num_samples, batch, num_epochs)
    num_steps = -(-num_samples * num_epochs // batch)
    taken = [position for step in range(1, num_steps + 1) for position in order.batch(step)]
    epochs = [taken[n : n + num_samples] for n in range(0, len(taken), num_samples)]
    assert [Counter(epoch) for epoch in epochs] == [Counter(range(num_samples))] * num_epochs
    assert order.batch(num_steps) and not order.batch(num_steps + 1)
    # A step alone, in any order, is what it was among the others.
    again = DataOrder(seed, num_samples, batch)
    for step in range(num_steps - 1, 0, -1):
        assert again.batch(step) == taken[(step - 1) * batch : step * batch]


def test_another_seed_and_another_epoch_are_other_orders() -> None:
    first, other = DataOrder(1, 50, 50), DataOrder(2, 50, 50)
    orders = [first.batch(1), first.batch(2), other.batch(1), other.batch(2)]
    assert len({tuple(order) for order in orders}) == 4


def test_only_action_tokens_are_trained_and_never_the_first() -> None:
    sample = to_imitate("f:1", 0, np.arange(5, dtype=np.int32), np.array([1, 0, 1, 1, 0], bool))
    assert sample.action_mask.tolist() == [False, False, True, True, False]
    assert weighted(sample).weights.tolist() == [0, 0, 1, 1, 0]
    assert sample.num_action_tokens == 2 and not sample.logprobs.any()


def message(role: str, content: str = "x") -> str:
    return f'{{"role": "{role}", "content": "{content}"}}'


def chat(*roles: str) -> str:
    return f'{{"messages": [{", ".join(map(message, roles))}], "reward": 1.0}}'


def test_a_chat_and_tokens_are_read() -> None:
    found = read_line(chat("system", "user", "assistant", "user", "assistant"), "f:1")
    assert isinstance(found, Chat)
    assert found.system == "x" and found.exchanges == [("x", "x")] * 2
    without = read_line(chat("user", "assistant"), "f:1")
    assert isinstance(without, Chat) and without.system == ""
    tokens = read_line('{"token_ids": [1, 2, 3], "action_mask": [false, false, true]}', "f:1")
    assert isinstance(tokens, Tokens) and tokens.token_ids == [1, 2, 3]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not JSON"),
        ("[1]", "neither messages nor token_ids"),
        ('{"text": "a"}', "neither messages nor token_ids"),
        ('{"messages": []}', "messages: List should have at least 2"),
        ('{"messages": [{"role": "user"}, {"role": "user"}]}', "messages.0.content: Field"),
        (chat("user", "user"), "roles are user, user, expected user and assistant in turn"),
        (chat("user", "assistant", "user"), "roles are user, assistant, user"),
        (chat("user", "tool", "assistant"), "roles are user, tool, assistant"),
        (chat("system", "assistant"), "roles are system, assistant"),
        ('{"token_ids": [1, 2], "action_mask": [true]}', "2 token_ids and 1 values"),
        ('{"token_ids": [1, -2], "action_mask": [true, true]}', "token_ids.1: Input should"),
        ('{"token_ids": [1, 2], "action_mask": [true, false]}', "chooses no token"),
    ],
)
def test_a_broken_line_is_named_with_its_place(line: str, problem: str) -> None:
    with pytest.raises(UsageError) as found:
        read_line(line, "rows.jsonl:7")
    assert found.value.message.startswith("rows.jsonl:7: ") and problem in found.value.message
    assert "rollout export --format sft" in found.value.remedy
