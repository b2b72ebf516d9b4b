"""Events of OpenAI's responses, made from the whole answer. Pure; imported by `responses`.

Invariant: what a client puts together from the pieces is the answer in `response.completed`.
"""

from typing import Any

from gateway.dialects import openai, sse
from gateway.dialects.protocol import Problem, ProblemKind

_FAILURE_CODES = {
    ProblemKind.UNAVAILABLE: "server_error",
    ProblemKind.INTERNAL: "server_error",
    ProblemKind.PROMPT_TOO_LONG: openai.CODES[ProblemKind.PROMPT_TOO_LONG],
}
"""Codex compacts at the last one and asks again after the others; every other problem has the code
at which it stops."""
_STOP = "invalid_prompt"
_INPUTS = {
    "function_call": ("arguments", "response.function_call_arguments"),
    "custom_tool_call": ("input", "response.custom_tool_call_input"),
}
_PARTS = {"message": "response.output_text", "reasoning": "response.reasoning_text"}


class _Numbered:
    """Events in the order of their numbers."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def add(self, kind: str, **fields: Any) -> None:
        data = {"type": kind, "sequence_number": len(self.events)} | fields
        self.events.append(sse.event(data, kind))


def events(opening: dict[str, Any], whole: dict[str, Any]) -> list[str]:
    stream = _Numbered()
    stream.add("response.created", response=opening)
    stream.add("response.in_progress", response=opening)
    for index, item in enumerate(whole["output"]):
        _add_item(stream, index, item)
    stream.add("response.completed", response=whole)
    return stream.events


def failure(problem: Problem) -> str:
    error = {
        "code": _FAILURE_CODES.get(problem.kind, _STOP),
        "message": openai.message(problem),
    }
    response = {
        "id": "resp_failed",
        "object": "response",
        "created_at": 0,
        "status": "failed",
        "model": "",
        "output": [],
        "error": error,
        "incomplete_details": None,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    stream = _Numbered()
    stream.add("response.failed", response=response)
    return stream.events[0]


def _add_item(stream: _Numbered, index: int, item: dict[str, Any]) -> None:
    kind, at = item["type"], {"item_id": item["id"], "output_index": index}
    if kind in _INPUTS:
        field, name = _INPUTS[kind]
        opening = item | {field: "", "status": "in_progress"}
        stream.add("response.output_item.added", output_index=index, item=opening)
        _add_text(stream, name, item[field], at)
        stream.add(f"{name}.done", **at, **{field: item[field]}, **_name(item))
    else:
        opening = item | {"content": []} | ({"status": "in_progress"} if "status" in item else {})
        stream.add("response.output_item.added", output_index=index, item=opening)
        (part,) = item["content"]
        name, at = _PARTS[kind], at | {"content_index": 0}
        stream.add("response.content_part.added", **at, part=part | {"text": ""})
        extra = {"logprobs": []} if kind == "message" else {}
        _add_text(stream, name, part["text"], at | extra)
        stream.add(f"{name}.done", **at, **extra, text=part["text"])
        stream.add("response.content_part.done", **at, part=part)
    stream.add("response.output_item.done", output_index=index, item=item)


def _add_text(stream: _Numbered, name: str, text: str, at: dict[str, Any]) -> None:
    for piece in sse.deltas(text):
        stream.add(f"{name}.delta", **at, delta=piece)


def _name(item: dict[str, Any]) -> dict[str, str]:
    return {"name": item["name"]} if item["type"] == "function_call" else {}
