"""A conversation and its tools as they are put together from a request, one part at a time.

Invariants: what comes out can be rendered: no result without its call, no assistant's message at
the end, no two tools of one name. A reply that an API writes in several parts is one message here,
as it was when it was stored. Pure; imported by the dialects.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from gateway.dialects.json_value import BadRequest, JsonValue
from mainspring.programs.request import ChatMessage, Role, ToolCall, ToolSpec

NOT_SHOWN = "[not shown: this model reads text only]"
"""In place of an image, a sound or a file."""
_BILLING = re.compile(r"\A\s*x-anthropic-billing-header:[^\n]*\n?", re.IGNORECASE)
"""Claude Code's first system block: a header for its maker, with a value that is another in each
request, so that no request would continue the one before."""


class Text:
    """Text in parts, of which some cannot be shown."""

    def __init__(self, separator: str = "\n") -> None:
        self._separator = separator
        self._parts: list[str] = []
        self.is_shown = False
        """Something in it is text."""
        self.hides = False
        """Something in it is not."""

    def add(self, text: str) -> None:
        self._parts.append(text)
        self.is_shown = True

    def hide(self) -> None:
        self._parts.append(NOT_SHOWN)
        self.hides = True

    @property
    def is_empty(self) -> bool:
        return not self._parts

    def __str__(self) -> str:
        return self._separator.join(self._parts)


class Conversation:
    def __init__(self) -> None:
        self._messages: list[ChatMessage] = []
        self._call_ids: set[str] = set()
        self._ignored: dict[str, None] = {}

    def ignore(self, name: str) -> None:
        """Note a field that was sent and has no effect."""
        self._ignored.setdefault(name)

    def ignore_set(self, body: JsonValue, defaults: Mapping[str, Iterable[Any]]) -> None:
        """Note the fields of `body` that are there with another value than the API's defaults."""
        for name, values in defaults.items():
            sent = body.mapping().get(name)
            if sent is not None and not any(sent == value for value in values):
                self.ignore(name)

    @property
    def ignored(self) -> tuple[str, ...]:
        return tuple(self._ignored)

    def system(self, text: str) -> None:
        self._messages.append(ChatMessage(role=Role.SYSTEM, text=text))

    def user(self, text: Text, where: JsonValue) -> None:
        if text.hides:
            self.ignore("images")
            if not text.is_shown:
                raise BadRequest(
                    f"{where.path} has images or files alone, and this model reads text only",
                    field=where.path,
                )
        self._messages.append(ChatMessage(role=Role.USER, text=str(text)))

    def assistant(
        self, text: str = "", calls: Iterable[ToolCall] = (), *, continues: bool = False
    ) -> None:
        """`continues`: more of the message before, if that is an assistant's."""
        calls = tuple(calls)
        self._call_ids |= {call.id for call in calls}
        last = self._messages[-1] if self._messages else None
        if continues and last is not None and last.role is Role.ASSISTANT:
            text, calls = last.text + text, last.tool_calls + calls
            self._messages.pop()
        self._messages.append(ChatMessage(role=Role.ASSISTANT, text=text, tool_calls=calls))

    @property
    def ends_bare(self) -> bool:
        """With a reply of which nothing but reasoning is known."""
        if not self._messages or self._messages[-1].role is not Role.ASSISTANT:
            return False
        return not self._messages[-1].text and not self._messages[-1].tool_calls

    def result(self, call_id: str, text: Text, where: JsonValue) -> None:
        if call_id not in self._call_ids:
            raise BadRequest(
                f"{where.path} is the result of the tool call {call_id[:100]!r}, and no message "
                "of the assistant before it has that call",
                field=where.path,
            )
        if text.hides:
            self.ignore("images")
        self._messages.append(ChatMessage(role=Role.TOOL, text=str(text), call_id=call_id))

    def messages(self, where: JsonValue) -> tuple[ChatMessage, ...]:
        """All of them. Raises BadRequest when there is nothing to answer."""
        if not self._messages:
            raise BadRequest(f"{where.path} must have at least one message", field=where.path)
        if self._messages[-1].role is Role.ASSISTANT:
            raise BadRequest(
                f"{where.path} ends with a message of the assistant: the model answers a user's "
                "message or a tool's result and does not continue a reply",
                field=where.path,
            )
        return tuple(self._messages)


class Toolbox:
    def __init__(self) -> None:
        self._tools: dict[str, ToolSpec] = {}

    def add(self, where: JsonValue, parameters: JsonValue, *, needs_schema: bool = False) -> str:
        """A tool whose name and description stand in `where`. Returns its name."""
        name = where.member("name").text()
        if not name:
            where.member("name").refuse("a name")
        if name in self._tools:
            raise BadRequest(f"{where.path}: two tools have the name {name!r}", field=where.path)
        schema = parameters.mapping() if needs_schema or parameters.is_there else {}
        if schema.get("type", "object") not in ("object", "OBJECT"):
            parameters.member("type").refuse('"object"')
        description = where.member("description").text_or("")
        self._tools[name] = ToolSpec(name=name, description=description, parameters=schema)
        return name

    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(self._tools.values())


def without_billing(text: str) -> str:
    return _BILLING.sub("", text)


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
