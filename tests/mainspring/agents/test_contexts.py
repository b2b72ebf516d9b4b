"""Contexts: which turns stay of a history that is too long, counted by hand and by hypothesis."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.agents.asking import AgentBroken
from mainspring.agents.choice import check_agent
from mainspring.agents.contexts.choice import CONTEXTS, fitted, opened
from mainspring.agents.contexts.forget_outputs import first_and_last
from mainspring.agents.contexts.head_tail import HeadTail, kept, marker
from mainspring.agents.contexts.protocol import Count, History
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.agents.context import ContextConfig
from mainspring.errors import ConfigError
from mainspring.programs.request import ChatMessage, Role

HERE = __name__
FIXED = (ChatMessage(role=Role.SYSTEM, text="s" * 10), ChatMessage(role=Role.USER, text="t" * 10))


async def count(messages: Sequence[ChatMessage]) -> int:
    """A token for each character, but for a marker, which has 5."""
    return sum(5 if m.text.startswith("[") else len(m.text) for m in messages)


def turn(number: int, size: int) -> tuple[ChatMessage, ...]:
    """A reply of 3 tokens, and what came of it."""
    return (
        ChatMessage(role=Role.ASSISTANT, text=f"{number:03}"),
        ChatMessage(role=Role.USER, text="o" * (size - 3)),
    )


def history(*sizes: int) -> History:
    return History(FIXED, tuple(turn(number, size) for number, size in enumerate(sizes)))


def shown(messages: Sequence[ChatMessage] | None) -> str | None:
    """Numbers of the turns, and the markers."""
    if messages is None:
        return None
    said = [m.text if m.role is Role.ASSISTANT else m.text.split()[0][1:] for m in messages[2:]]
    return " ".join(
        str(int(text)) if message.role is Role.ASSISTANT else f"<{text}>"
        for message, text in zip(messages[2:], said, strict=True)
        if message.role is Role.ASSISTANT or message.text.startswith("[")
    )


# The budget less 20 tokens of system and task and 5 of the marker is what turns share.
@pytest.mark.parametrize(
    ("sizes", "budget", "ratio", "expected"),
    [
        ((10,) * 10, 75, 0.3, "0 <5> 6 7 8 9"),
        ((10,) * 10, 125, 0.3, "0 1 2 3 4 5 6 7 8 9"),
        ((10,) * 10, 124, 0.3, "0 1 <1> 3 4 5 6 7 8 9"),
        ((10,) * 10, 65, 0.0, "<6> 6 7 8 9"),
        ((10,) * 10, 65, 1.0, "0 1 2 3 <6>"),
        ((10,) * 10, 65, 0.5, "0 1 <6> 8 9"),
        ((30, 10, 10, 10), 60, 0.3, "<1> 1 2 3"),
        ((10, 10, 10, 30), 60, 0.3, "0 <3>"),
        ((10, 50, 10, 10), 65, 0.3, "0 <1> 2 3"),
        ((10, 10, 10, 10), 25, 0.3, "<4>"),
        ((10, 10), 34, 0.3, "<2>"),
        ((10, 10), 35, 0.3, "<1> 1"),
    ],
)
async def test_head_and_tail(
    sizes: tuple[int, ...], budget: int, ratio: float, expected: str
) -> None:
    config = ContextConfig(kind="head_tail", head_ratio=ratio)
    messages = await fitted(config, history(*sizes), budget, count)
    if "<" not in expected:  # nothing is left out: it is no shorter
        assert messages is None
        return
    assert shown(messages) == expected
    assert messages is not None and await count(messages) <= budget


async def test_a_share_of_the_room_is_kept_for_later_turns() -> None:
    config = ContextConfig(kind="head_tail", fill=0.5)
    messages = await fitted(config, history(*[10] * 10), 100, count)
    assert shown(messages) == "<8> 8 9"


async def test_what_cannot_be_made_shorter_is_left() -> None:
    config = ContextConfig(kind="head_tail")
    assert await fitted(config, history(100), 50, count) is None
    assert await fitted(config, history(10, 10), 24, count) is None
    assert await fitted(ContextConfig(), history(10, 10), 24, count) is None


@given(
    sizes=st.lists(st.integers(1, 50), min_size=2, max_size=30),
    available=st.integers(0, 600),
    ratio=st.floats(0, 1),
)
def test_both_ends_are_as_long_as_they_can_be(
    sizes: list[int], available: int, ratio: float
) -> None:
    first, last = kept(sizes, available, ratio)
    assert first >= 0 and last >= 0 and first + last <= len(sizes)
    head, tail = sum(sizes[:first]), sum(sizes[len(sizes) - last :])
    assert head <= int(available * ratio) and head + tail <= max(available, head)
    if first < len(sizes):
        assert head + sizes[first] > int(available * ratio)
    if first + last < len(sizes):
        assert head + tail + sizes[len(sizes) - last - 1] > available


async def test_tokens_that_differ_between_others_are_counted_in_the_end() -> None:
    async def uneven(messages: Sequence[ChatMessage]) -> int:
        return await count(messages) + (15 if len(messages) > 8 else 0)

    messages = await HeadTail(ContextConfig()).fit(history(*[10] * 10), 65, uneven)
    assert messages is not None and await uneven(messages) <= 65
    assert shown(messages) == "0 <8> 9"


def test_turns_are_cut_before_each_reply() -> None:
    tool = ChatMessage(role=Role.TOOL, text="out", call_id="a")
    messages = (*FIXED, *turn(0, 5), tool, *turn(1, 5)[:1])
    assert History.of(messages) == History(FIXED, ((*turn(0, 5), tool), turn(1, 5)[:1]))
    assert History.of(FIXED) == History(FIXED, ())


def test_the_marker_tells_the_number() -> None:
    assert marker(1).text == "[1 turn was left out here to save room]"
    assert marker(12).text == "[12 turns were left out here to save room]"


def output(number: int, num_lines: int) -> tuple[ChatMessage, ...]:
    text = "\n".join(f"line {line}" for line in range(num_lines))
    return ChatMessage(role=Role.ASSISTANT, text=f"{number}"), ChatMessage(
        role=Role.USER, text=text
    )


async def test_old_outputs_are_forgotten_first() -> None:
    long = History(FIXED, tuple(output(number, 20) for number in range(4)))
    whole = await count([*FIXED, *(m for t in long.turns for m in t)])
    config = ContextConfig(kind="forget_outputs", lines=2)
    messages = await fitted(config, long, whole - 1, count)
    assert messages is not None
    texts = [message.text for message in messages[3::2]]
    cut = "line 0\nline 1\n[16 lines of this output were left out]\nline 18\nline 19"
    assert texts == [cut, *[long.turns[1][1].text] * 3]
    messages = await fitted(config, long, whole * 3 // 4, count)
    assert messages is not None
    texts = [message.text for message in messages[3::2]]
    assert texts[:2] == [cut, cut] and texts[3] == long.turns[3][1].text
    assert await fitted(config, long, 100, count) is None


SUMS_UP = ContextConfig(kind="summarise", summary_prompt="[sum", lines=1)
"""Its request has 5 tokens."""


@pytest.mark.parametrize(
    ("sizes", "budget", "num_told"),
    [
        ((10, 10, 10), 200, 2),  # the newest is never summed up
        ((10, 10, 10), 45, 2),
        ((10, 10, 10), 44, 1),
        ((10, 10, 10), 34, None),
        ((10, 90, 10), 60, 1),
        ((90, 10), 60, None),
        ((10,), 60, None),
        ((), 60, None),
    ],
)
async def test_a_summary_is_asked_for_as_many_turns_as_leave_room(
    sizes: tuple[int, ...], budget: int, num_told: int | None
) -> None:
    messages = await fitted(SUMS_UP, history(*sizes), budget, count)
    if num_told is None:
        assert messages is None
        return
    assert messages is not None and await count(messages) <= budget
    assert messages[-1] == ChatMessage(role=Role.USER, text="[sum")
    assert History.of(messages[:-1]).turns == history(*sizes).turns[:num_told]


async def test_a_summary_opens_a_branch_with_the_turns_that_are_not_in_it() -> None:
    rest = History(FIXED, (output(7, 20),))
    whole = await opened(SUMS_UP, rest, " I looked. ", 1000, count)
    assert whole is not None and whole[3:] == rest.turns[0]
    assert whole[2].text == "Summary of the work so far:\nI looked."
    cut = await opened(SUMS_UP, rest, "I looked.", await count(whole) - 1, count)
    assert cut is not None and cut[3] == rest.turns[0][0]
    assert cut[4].text == "line 0\n[18 lines of this output were left out]\nline 19"
    alone = await opened(SUMS_UP, rest, "I looked.", await count(cut) - 1, count)
    assert alone == whole[:3]
    assert await opened(SUMS_UP, rest, "I looked.", 10, count) is None
    empty = await opened(SUMS_UP, History(FIXED, ()), " ", 1000, count)
    assert empty is not None and empty[2].text.endswith("(nothing was written)")


def test_only_what_adds_to_what_was_said_can_be_summed_up() -> None:
    check_agent(AgentConfig(context=SUMS_UP))
    check_agent(AgentConfig(kind="react", context=SUMS_UP))
    with_memory = AgentConfig.model_validate(
        {"kind": "react", "react": {"memory": 3}, "context": {"kind": "summarise"}}
    )
    with pytest.raises(ConfigError, match="needs an agent that adds to what was said"):
        check_agent(with_memory)


@pytest.mark.parametrize(
    ("text", "num_lines", "short"),
    [
        ("a\nb\nc", 1, "a\nb\nc"),
        ("a\nb\nc\nd", 1, "a\n[2 lines of this output were left out]\nd"),
        ("", 3, ""),
        ("a\n\n\n\nb", 1, "a\n[3 lines of this output were left out]\nb"),
    ],
)
def test_first_and_last_lines(text: str, num_lines: int, short: str) -> None:
    assert first_and_last(text, num_lines) == short


class Own:
    def __init__(self, config: ContextConfig) -> None: ...

    async def fit(self, history: History, budget: int, count: Count) -> object:
        return [*history.fixed, *history.turns[-1]]


class Raising(Own):
    async def fit(self, history: History, budget: int, count: Count) -> object:
        raise ValueError("I cannot")


class Forgetful(Own):
    async def fit(self, history: History, budget: int, count: Count) -> object:
        return history.turns[-1]


class Odd(Own):
    async def fit(self, history: History, budget: int, count: Count) -> object:
        return ["text"]


async def test_one_of_ones_own() -> None:
    config = ContextConfig(kind=f"{HERE}:Own")
    CONTEXTS.check(config.kind)
    assert shown(await fitted(config, history(10, 10), 5, count)) == "1"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Raising", "raised ValueError: I cannot"),
        ("Forgetful", "left out the system's message or the task's"),
        ("Odd", "returned something else than messages"),
    ],
)
async def test_one_of_ones_own_that_fails_is_named(name: str, message: str) -> None:
    with pytest.raises(AgentBroken, match=message):
        await fitted(ContextConfig(kind=f"{HERE}:{name}"), history(10, 10), 5, count)


def test_what_is_no_strategy_is_refused() -> None:
    with pytest.raises(ConfigError, match="no context is called 'summary'"):
        CONTEXTS.check("summary")
    with pytest.raises(ConfigError, match="lacks fit"):
        CONTEXTS.check("builtins:int")
    with pytest.raises(ValueError, match="less than or equal to 1"):
        ContextConfig(head_ratio=1.1)
