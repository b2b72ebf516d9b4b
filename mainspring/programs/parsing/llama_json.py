"""Calls as `{"name": ..., "parameters": {...}}` and nothing else: Llama 3. Pure.

Several stand one after the other, with `;` or white space between. A reply that holds anything
beside is text.
"""

import re
from collections.abc import Sequence

from mainspring.programs.parsing.json_call import call_of, encodable, json_at
from mainspring.programs.parsing.reasoning import split_reasoning
from mainspring.programs.reply import Reply
from mainspring.programs.request import ToolCall, ToolSpec

PYTHON_TAG = "<|python_tag|>"
"""Opening of Llama's calls, where the tokenizer does not take it for a special token."""
BETWEEN = re.compile(r"[\s;]*")


def parse(text: str, tools: Sequence[ToolSpec], is_cut: bool) -> Reply:
    """See protocol.Parser."""
    reasoning, rest = split_reasoning(encodable(text))
    calls = _calls(rest.strip().removeprefix(PYTHON_TAG)) if tools else ()
    return Reply(text="" if calls else rest, reasoning=reasoning, tool_calls=calls, is_cut=is_cut)


def _calls(text: str) -> tuple[ToolCall, ...]:
    """None unless the whole text is calls."""
    calls: list[ToolCall] = []
    position = _after_gap(text, 0)
    while position < len(text):
        parsed = json_at(text, position)
        call = None if parsed is None else call_of(parsed[0], "parameters", "arguments")
        if parsed is None or call is None:
            return ()
        calls.append(call)
        position = _after_gap(text, parsed[1])
    return tuple(calls)


def _after_gap(text: str, position: int) -> int:
    match = BETWEEN.match(text, position)
    return match.end() if match else position
