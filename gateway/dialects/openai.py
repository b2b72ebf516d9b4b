"""Parts that OpenAI's two APIs share: text in requests, errors, which routes of no dialect have
too, and the list of models. Pure.
"""

from collections.abc import Collection
from typing import Any

from gateway.dialects.conversation import Text
from gateway.dialects.json_value import JsonValue
from gateway.dialects.protocol import STATUSES, Problem, ProblemKind
from mainspring.programs.profile import MODEL_NAME

_TYPES = {
    ProblemKind.UNKNOWN_KEY: "authentication_error",
    ProblemKind.SESSION_OVER: "permission_error",
    ProblemKind.UNAVAILABLE: "server_error",
    ProblemKind.INTERNAL: "server_error",
}
CODES = {
    ProblemKind.UNKNOWN_KEY: "invalid_api_key",
    ProblemKind.UNKNOWN_ROUTE: "unknown_url",
    ProblemKind.WRONG_METHOD: "method_not_supported",
    ProblemKind.SESSION_OVER: "session_over",
    ProblemKind.PROMPT_TOO_LONG: "context_length_exceeded",
}


def text_of(
    content: JsonValue, shown: Collection[str], hidden: Collection[str], separator: str = "\n"
) -> Text:
    """Text of a string, or of a list of parts. `shown`, `hidden`: types of parts with text, and of
    those that the model cannot see. Raises BadRequest for any other."""
    text = Text(separator)
    if content.is_text:
        text.add(content.text())
        return text
    if not content.is_list:
        content.refuse("text or a list of parts")
    for part in content.items():
        kind = part.member("type").text()
        if kind in shown:
            text.add(part.member("text").text())
        elif kind == "refusal":
            text.add(part.member("refusal").text())
        elif kind in hidden:
            text.hide()
        else:
            part.member("type").refuse(" or ".join(shown))
    return text


def message(problem: Problem) -> str:
    if problem.max_context is None:
        return problem.message
    # litellm knows a full context by these words.
    return (
        f"{problem.message}. This model's maximum context length is {problem.max_context} tokens."
    )


def error(problem: Problem) -> tuple[int, dict[str, Any]]:
    detail = {
        "message": message(problem),
        "type": _TYPES.get(problem.kind, "invalid_request_error"),
        "param": problem.field,
        "code": CODES.get(problem.kind),
    }
    return STATUSES[problem.kind], {"error": detail}


def model(name: str, max_context: int) -> dict[str, Any]:
    """Answer of the route of a model: there is one, under any name."""
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "mainspring",
        "context_length": max_context,
        "max_model_len": max_context,
    }


def models(max_context: int) -> dict[str, Any]:
    """The answer of the route that lists models."""
    return {"object": "list", "data": [model(MODEL_NAME, max_context)]}
