"""Errors in OpenAI's form, of both its APIs and of routes that belong to none. Pure."""

from typing import Any

from gateway.dialects.protocol import STATUSES, Problem, ProblemKind

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
