"""Arguments of tool calls in APIs that allow less than the policy can write.

Invariant: what was sampled comes back exactly when the client echoes it, also when it is no JSON
object: then its text is wrapped, and the call's id tells that. Pure; imported by the dialects.
"""

import json
from typing import Any

from gateway.dialects.json_value import BadRequest, JsonValue, cleaned

WRAPPED = "_raw"
"""Ends the id of a call whose arguments were wrapped."""
_FIELD = "arguments"
_MARGIN = 16
"""Levels that a request has around the arguments."""


def as_object(arguments: str) -> dict[str, Any] | None:
    """None: no JSON object, or one that would not come back as it was sent."""
    try:
        value = json.loads(arguments)
        is_whole = cleaned(value, _MARGIN) == value
    except (ValueError, RecursionError, BadRequest):
        return None
    return value if is_whole and isinstance(value, dict) else None


def to_object(call_id: str, arguments: str) -> tuple[str, dict[str, Any]]:
    """Id and input of a call in an API whose arguments are an object. Clients check them by the
    tool's schema and tell the model what is wrong."""
    value = as_object(arguments)
    return (call_id, value) if value is not None else (call_id + WRAPPED, {_FIELD: arguments})


def from_object(call_id: str, value: JsonValue) -> str:
    fields = value.mapping() if value.is_there else {}
    raw = fields.get(_FIELD)
    if call_id.endswith(WRAPPED) and isinstance(raw, str) and len(fields) == 1:
        return raw
    return json.dumps(fields, ensure_ascii=False)


FREEFORM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""How a tool that takes text is offered to the model."""


def to_freeform(call_id: str, arguments: str) -> tuple[str, str]:
    """Id and input of a call of a tool that takes text."""
    value = as_object(arguments)
    if value is not None and list(value) == ["input"] and isinstance(value["input"], str):
        return call_id, value["input"]
    return call_id + WRAPPED, arguments


def from_freeform(call_id: str, text: str) -> str:
    if call_id.endswith(WRAPPED):
        return text
    return json.dumps({"input": text}, ensure_ascii=False)
