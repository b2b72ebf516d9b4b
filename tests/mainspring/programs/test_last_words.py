"""How clients told their end, in lines that they printed when they were measured."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from mainspring.programs.last_words import filled_context, last_words

CLAUDE = {
    "type": "result",
    "subtype": "success",
    "is_error": True,
    "api_error_status": 400,
    "result": "Prompt is too long",
    "stop_reason": "stop_sequence",
    "terminal_reason": "prompt_too_long",
    "fast_mode_state": "off",
}
CODEX = (
    {"type": "item.completed", "item": {"id": "1", "type": "command_execution", "exit_code": 0}},
    {"type": "item.completed", "item": {"id": "2", "type": "agent_message", "text": "Fixed."}},
    {"type": "turn.completed", "usage": {"input_tokens": 142094}},
)


def lines(*events: Mapping[str, Any]) -> str:
    return "\n".join(map(json.dumps, events)) + "\n"


@pytest.mark.parametrize(
    ("printed", "words"),
    [
        (lines(CLAUDE), "error, prompt_too_long: Prompt is too long"),
        (
            lines(CLAUDE | {"subtype": "error_during_execution", "result": None})
            + "a line on standard error\n",
            "error, error_during_execution, prompt_too_long",
        ),
        (
            lines(CLAUDE | {"terminal_reason": "rapid_refill_breaker", "result": ""}),
            "error, rapid_refill_breaker",
        ),
        (
            lines(CLAUDE | {"is_error": False, "terminal_reason": "completed", "result": "Fixed."}),
            "success, completed: Fixed.",
        ),
        # Line breaks of Unicode are sent as they are, and end no line of JSON.
        (
            json.dumps(CLAUDE | {"result": "a\u2028b\x85c"}, ensure_ascii=False),
            "error, prompt_too_long: a\u2028b\x85c",
        ),
        # What is stored begins in the middle of the only line.
        (lines(CLAUDE)[60:], "prompt_too_long"),
        (lines(*CODEX), "turn.completed: Fixed."),
        (lines(*CODEX)[40:], "turn.completed: Fixed."),
        (
            lines(CODEX[0], {"type": "turn.failed", "error": {"message": "stream is gone"}}),
            "turn.failed: stream is gone",
        ),
        (lines({"type": "error", "message": "no such model"}), "error: no such model"),
        (lines({"type": "turn.failed", "error": "text"}), "turn.failed"),
        ("Fixed.\n", None),
        ("", None),
        ("\n\n", None),
        ('{"a": 1}\n', None),
        ("{broken\n[1]\nnull\n", None),
        ("{" * 100_000, None),
        ('{"type": "result"}', ""),
    ],
)
def test_the_words_of_a_client(printed: str, words: str | None) -> None:
    assert last_words(printed) == words


ROOM = "Codex ran out of room in the model's context window. Start a new thread."
REFUSED = '{"error":{"message":"too long","code":"context_length_exceeded"}}'


@pytest.mark.parametrize(
    ("printed", "is_full"),
    [
        (lines(CLAUDE), True),
        (lines(CLAUDE)[60:], True),
        (lines(CLAUDE) + "a line on standard error\n", True),
        (lines(CLAUDE | {"terminal_reason": "rapid_refill_breaker", "result": ""}), True),
        (lines(CLAUDE | {"terminal_reason": "blocking_limit"}), True),
        # A version that tells no reason.
        (lines(CLAUDE | {"terminal_reason": None}), True),
        (lines(CLAUDE | {"terminal_reason": "model_error", "result": "overloaded"}), False),
        (
            lines(
                CLAUDE
                | {"is_error": False, "terminal_reason": "completed", "result": "context window"}
            ),
            False,
        ),
        (lines({"type": "error", "message": ROOM}), True),
        (lines(*CODEX[:2], {"type": "turn.failed", "error": {"message": ROOM}}), True),
        (lines({"type": "turn.failed", "error": {"message": f"400: {REFUSED}"}}), True),
        # Codex sums up after such an error, and ends well.
        (lines({"type": "error", "message": ROOM}, *CODEX), False),
        (lines({"type": "turn.failed", "error": {"message": "stream is gone"}}), False),
        (lines({"type": "turn.failed", "error": "text"}), False),
        # What the policy wrote is inside a text of the client.
        (lines({"type": "note", "text": json.dumps(CLAUDE)}), False),
        (f"{json.dumps(json.dumps(CLAUDE))[40:]}\n", False),
        (lines(CLAUDE | {"terminal_reason": ["prompt_too_long"], "result": 5}), False),
        ("Prompt is too long\n", False),
        ("", False),
        ("{" * 100_000, False),
    ],
)
def test_whether_a_client_ended_because_its_context_was_full(printed: str, is_full: bool) -> None:
    assert filled_context(printed) is is_full
