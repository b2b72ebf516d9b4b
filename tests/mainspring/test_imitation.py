"""What a supervised run trains on, and in which order."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.errors import UsageError
from mainspring.trajectories.imitation import DataOrder, to_imitate, weighted
from mainspring.trajectories.imported import ImportedChat, ImportedTokens, read_line

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
    assert isinstance(found, ImportedChat)
    assert found.system == "x" and found.exchanges == [("x", "x")] * 2
    without = read_line(chat("user", "assistant"), "f:1")
    assert isinstance(without, ImportedChat) and without.system == ""
    tokens = read_line('{"token_ids": [1, 2, 3], "action_mask": [false, false, true]}', "f:1")
    assert isinstance(tokens, ImportedTokens) and tokens.token_ids == [1, 2, 3]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not JSON"),
        ("[1]", "it is no JSON object"),
        ('{"text": "a"}', "neither messages nor token_ids"),
        ('{"messages": []}', "messages: must have at least 2 entries"),
        ('{"messages": [{"role": "user"}, {"role": "user"}]}', "messages.0.content: no text"),
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


def sharegpt(*turns: tuple[str, object], **more: object) -> str:
    return json.dumps({"conversations": [{"from": f, "value": v} for f, v in turns]} | more)


def test_other_forms_of_a_chat_are_read_as_the_same() -> None:
    asked = {
        "role": "user",
        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    }
    replied = {"role": "assistant", "content": "c", "tool_calls": [], "name": "x"}
    for line in (
        sharegpt(("system", "s"), ("human", "ab"), ("gpt", "c")),
        sharegpt(("user", "ab"), ("assistant", "c"), system="s"),
        json.dumps({"messages": [{"role": "developer", "content": "s"}, asked, replied]}),
        json.dumps({"messages": None, "conversations": [
            {"role": "system", "content": "s"}, asked, replied]}),
    ):  # fmt: skip
        found = read_line(line, "f:1")
        assert isinstance(found, ImportedChat)
        assert (found.system, found.exchanges) == ("s", [("ab", "c")]), line


PAIR = chat("user", "assistant")
IMAGE = {"type": "image_url", "image_url": {"url": "x"}}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            chat("user", "assistant").replace('"x"', r'"bad \ud800 x"', 1),
            r"half a surrogate pair (\ud800)",
        ),
        (
            chat("user", "assistant").replace('"user"', r'"\udfff"', 1),
            "messages.0.role: half a surr",
        ),
        ("[" * 100_000, "nested too deeply"),
        ('{"messages": ' + "[" * 100_000, "nested too deeply"),
        ("1" * 5000, "not JSON"),
        ("null", "no JSON object"),
        ('{"messages": 3}', "messages: no list"),
        ('{"messages": ["a", "b"]}', "messages.0: no object"),
        ('{"messages": [{"role": 1, "content": "a"}, {}]}', "messages.0.role: no text"),
        ('{"messages": [{"role": "user", "content": NaN}, {}]}', "messages.0.content: no text"),
        (json.dumps({"messages": [{"role": "user", "content": [IMAGE]}] * 2}), "not all texts"),
        (json.dumps({"messages": [{"role": "user", "content": []}] * 2}), "messages.0.content: no"),
        (chat("user", "assistant").replace('"x"', '""'), "its replies are empty"),
        (chat("user", "assistant").replace('"x"', '" \\n"'), "its replies are empty"),
        (
            '{"messages": [{"role": "user", "content": "a"}, '
            '{"role": "assistant", "content": "b", "tool_calls": [{"id": "1"}]}]}',
            "messages.1.tool_calls: messages with it are not read",
        ),
        (json.dumps({"messages": [], "tools": [{"name": "x"}]}), "tools: chats with tools"),
        (
            sharegpt(("human", "a"), ("function_call", "{}"), ("gpt", "b")),
            "roles are user, function",
        ),
        (sharegpt(("human", "a"), ("gpt", None)), "messages.1.content: no text"),
        ('{"token_ids": [1, 1e300], "action_mask": [true, true]}', "token_ids.1"),
        ('{"token_ids": [1, NaN], "action_mask": [true, true]}', "token_ids.1"),
        ('{"token_ids": [1, "2"], "action_mask": [true, true]}', "token_ids.1"),
        ('{"token_ids": [1, true], "action_mask": [true, true]}', "token_ids.1"),
        ('{"token_ids": [1, 9223372036854775808], "action_mask": [true, true]}', "token_ids.1"),
        ('{"token_ids": [1, 2], "action_mask": ["yes", "no"]}', "action_mask.0: neither true"),
        ('{"token_ids": [1, 2], "action_mask": [1, 2]}', "action_mask.1: neither true"),
        ('{"token_ids": {"a": 1}, "action_mask": []}', "token_ids"),
        ('{"token_ids": [1, 2]}', "action_mask: Field required"),
        (chat("user", "\x1b[31mred", "assistant").replace("\x1b", "\\u001b"), "'\\x1b[31mred'"),
    ],
)
def test_text_of_any_kind_is_read_or_named(line: str, problem: str) -> None:
    with pytest.raises(UsageError) as found:
        read_line(line, "rows.jsonl:7")
    assert found.value.message.startswith("rows.jsonl:7: ") and problem in found.value.message
    found.value.message.encode()


def test_texts_that_look_odd_are_texts() -> None:
    odd = "\u2028\x00\x0b\x85\ufeff\uffff\U0010ffff"
    line = json.dumps({"messages": [{"role": "user", "content": odd}, {"role": "assistant", "content": odd}]})  # fmt: skip  # noqa: E501
    found = read_line(line, "f:1")
    assert isinstance(found, ImportedChat) and found.exchanges == [(odd, odd)]


TEXTS = st.text(max_size=4) | st.sampled_from(["user", "assistant", "system", "\ud800", ""])
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from(
            ["messages", "conversations", "role", "content", "from", "value", "token_ids", "text",
             "action_mask", "tools", "system", "tool_calls", "type"]
        ),
        inner,
        max_size=5,
    ),
    max_leaves=30,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(ANY | st.fixed_dictionaries({"messages": ANY}) | st.text(max_size=30))
def test_no_line_is_more_than_an_error(given_: object) -> None:
    for line in (json.dumps(given_), str(given_)):
        try:
            found = read_line(line, "f:1")
        except UsageError as error:
            assert error.message.startswith("f:1: ")
        else:
            assert isinstance(found, ImportedChat | ImportedTokens)
