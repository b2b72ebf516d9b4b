"""Facts on what a chat template can show of a program's request, found by trying it once.

Invariants: a fact is true only when the template put every text where it belongs, in order; a
template that drops what was said is refused. Used by `request_text`; imports no tokenizer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mainspring.errors import ModelError

Render = Callable[[Sequence[Any], Sequence[Any]], str]
"""`ChatTokenizer.render`: messages and tools to text."""
Message = dict[str, Any]
NUM_HISTORY = 24
"""Messages that a template must keep; templates that drop some keep the last few."""
THOUGHT = "<think>"
MANY_CALLS = 1000


@dataclass(frozen=True, slots=True)
class TemplateFacts:
    tools: bool
    """It describes the tools that it is given."""
    tool_role: bool
    """It has a form for the results of tools."""
    num_calls: int
    """How many tool calls of one assistant's message it writes: none, one or MANY_CALLS."""
    calls_with_text: bool
    """It also writes the text of such a message."""
    system: bool
    """It takes a system message at the beginning."""
    later_system: bool
    """It takes another one in the middle."""
    repeated_user: bool
    """It takes several user messages in a row."""
    opening: str
    """Beginning of a reply's reasoning that the template writes itself."""


def find_facts(render: Render, directory: Path) -> TemplateFacts:
    """Raises ModelError when earlier messages are missing in what the template makes."""
    user, reply, later = _say("user", "ask0z"), _say("assistant", "tell0z"), _say("user", "then0z")
    history = [
        _say("assistant" if place % 2 else "user", f"part{place}z") for place in range(NUM_HISTORY)
    ]
    if not _shows(
        render, [*history, later], texts=[message["content"] for message in [*history, later]]
    ):
        raise ModelError(
            f"model directory {directory}: the chat template drops earlier messages of a "
            f"conversation of {NUM_HISTORY}",
            remedy="a program's history must stay as it was: change chat_template so that it "
            "writes every message",
        )
    system, between = _say("system", "rule0z"), _say("system", "note0z")
    result = _say("tool", "found0z")
    has_calls = _shows(render, [user, _calls(1), result, later], texts=["name0z", "value0z"])
    several = _shows(
        render, [user, _calls(2), result, later], texts=["name0z", "value0z", "name1z", "value1z"]
    )
    spoken = {**_calls(1), "content": "tell0z"}
    return TemplateFacts(
        tools=_shows(
            render,
            [system, user],
            [_tool()],
            texts=["toolname0z", "toolwords0z", "toolfield0z"],
        )
        and _shows(render, [system, user], [_tool()], texts=["rule0z", "ask0z"]),
        tool_role=_shows(
            render,
            [user, reply, result, _say("tool", "second0z"), reply, later],
            texts=["ask0z", "tell0z", "found0z", "second0z", "tell0z", "then0z"],
        )
        and _shows(render, [user, reply, result], texts=["tell0z", "found0z"]),
        num_calls=(MANY_CALLS if several else 1) if has_calls else 0,
        calls_with_text=_shows(
            render, [user, spoken, result, later], texts=["ask0z", "tell0z", "name0z", "value0z"]
        ),
        system=_shows(
            render, [system, user, reply, later], texts=["rule0z", "ask0z", "tell0z", "then0z"]
        ),
        later_system=_shows(
            render,
            [system, user, reply, between, later],
            texts=["rule0z", "ask0z", "tell0z", "note0z", "then0z"],
        )
        and _shows(render, [user, reply, later, between], texts=["tell0z", "then0z", "note0z"])
        and _shows(render, [user, reply, between], texts=["tell0z", "note0z"]),
        repeated_user=_shows(
            render, [user, later, reply, user, later], texts=["ask0z", "then0z"] * 2
        ),
        opening=f"{THOUGHT}\n" if _opens_thought(render, user) else "",
    )


def _shows(
    render: Render, messages: Sequence[Any], tools: Sequence[Any] = (), *, texts: Sequence[str]
) -> bool:
    """Whether the template takes the messages, and writes the texts in this order."""
    try:
        rendered = render(messages, tools)
    except ModelError:
        return False
    position = 0
    for text in texts:
        index = rendered.find(text, position)
        if index < 0:
            return False
        position = index + len(text)
    return True


def _opens_thought(render: Render, user: Message) -> bool:
    return render([user], ()).rstrip().endswith(THOUGHT)


def _say(role: str, text: str) -> Message:
    return {"role": role, "content": text}


def _calls(count: int) -> Message:
    calls = [
        {"type": "function", "function": {"name": f"name{n}z", "arguments": {"key": f"value{n}z"}}}
        for n in range(count)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _tool() -> dict[str, Any]:
    schema = {"type": "object", "properties": {"toolfield0z": {"type": "string"}}}
    about = {"name": "toolname0z", "description": "toolwords0z", "parameters": schema}
    return {"type": "function", "function": about}
