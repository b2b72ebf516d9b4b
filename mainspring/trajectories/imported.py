"""One line of an imported file: a chat, or tokens. Pure.

A chat is an object with "messages", as `mainspring rollout export --format sft` writes it: an
optional system message, then user and assistant in turn, an assistant's last. What an "assistant"
wrote is trained on; an empty reply is context. ShareGPT's form ("conversations" of "from" and
"value") and texts in parts are read as the same. Tokens are "token_ids" and "action_mask", of one
length. Other fields of a line are ignored; what a message has beside its text and cannot be
trained on is refused, so that nothing of it is lost without a word.

Invariant: whatever a line holds, it is read or is one UsageError with the line's place.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, ValidationError

from mainspring.errors import UsageError

_SHAPES = (
    'each line is a JSON object with "messages" (as `mainspring rollout export --format sft` '
    'writes them), with "conversations" (ShareGPT), or with "token_ids" and "action_mask"'
)
_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "developer": "system",
}
"""Names that others have for the three roles."""
_TEXT_PARTS = ("text", "input_text", "output_text")
_NOT_READ = ("tool_calls", "function_call", "reasoning_content", "thinking", "audio")
"""Fields of a message beside its content that chat templates put into a prompt or reply."""


def _text(value: object) -> str:
    if isinstance(value, list) and value:
        parts = [part for part in value if isinstance(part, Mapping)]
        if len(parts) < len(value) or any(part.get("type") not in _TEXT_PARTS for part in parts):
            raise ValueError("parts that are not all texts")
        value = "".join(_text(part.get("text")) for part in parts)
    if not isinstance(value, str):
        raise ValueError("no text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        half = value[error.start].encode("ascii", "backslashreplace").decode()
        raise ValueError(f"half a surrogate pair ({half}), which is no text") from None
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool | int) or value not in (0, 1):
        raise ValueError("neither true nor false")
    return bool(value)


Text = Annotated[str, BeforeValidator(_text)]
TokenId = Annotated[StrictInt, Field(ge=0, lt=2**63)]


class ImportedMessage(BaseModel):
    model_config = ConfigDict(frozen=True)

    role: Text
    content: Text


class ImportedChat(BaseModel):
    model_config = ConfigDict(frozen=True)

    messages: Annotated[list[ImportedMessage], Field(min_length=2)]

    @property
    def system(self) -> str:
        """Empty where there is none."""
        return self.messages[0].content if self.messages[0].role == "system" else ""

    @property
    def exchanges(self) -> list[tuple[str, str]]:
        """Pairs of what was asked and what was replied."""
        spoken = [message.content for message in self.messages if message.role != "system"]
        return list(zip(spoken[::2], spoken[1::2], strict=True))


class ImportedTokens(BaseModel):
    model_config = ConfigDict(frozen=True)

    token_ids: Annotated[list[TokenId], Field(min_length=2)]
    action_mask: list[Annotated[bool, BeforeValidator(_flag)]]


def read_line(text: str, where: str) -> ImportedChat | ImportedTokens:
    """`where`: file and line, for messages. Raises UsageError."""
    try:
        row: Any = json.loads(text)
    except RecursionError:
        raise UsageError(f"{where}: it is nested too deeply", remedy=_SHAPES) from None
    except ValueError as error:
        raise UsageError(f"{where}: not JSON: {error}", remedy=_SHAPES) from None
    return read_object(row, where)


def read_object(row: object, where: str) -> ImportedChat | ImportedTokens:
    """The same of a line that is parsed, or of a table's row."""
    try:
        return _read(row)
    except RecursionError:
        raise UsageError(f"{where}: it is nested too deeply", remedy=_SHAPES) from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        problem = first["msg"].removeprefix("Value error, ")
        if first["type"] == "too_short":
            problem = f"must have at least {first.get('ctx', {})['min_length']} entries"
        raise UsageError(f"{where}: {field}: {problem}", remedy=_SHAPES) from None
    except ValueError as error:
        raise UsageError(f"{where}: {error}", remedy=_SHAPES) from None


def _read(row: object) -> ImportedChat | ImportedTokens:
    if not isinstance(row, Mapping):
        raise ValueError("it is no JSON object")
    filled = {key: value for key, value in row.items() if value is not None}
    if "messages" in filled or "conversations" in filled:
        chat = ImportedChat.model_validate({"messages": _messages(filled)})
        problem: str = _problem(chat)
    elif "token_ids" in filled:
        tokens = ImportedTokens.model_validate(filled)
        if problem := _lengths(tokens):
            raise ValueError(problem)
        return tokens
    else:
        raise ValueError("neither messages nor token_ids")
    if problem:
        raise ValueError(problem)
    return chat


def _messages(filled: Mapping[str, Any]) -> object:
    """Messages of either form, as the first one."""
    if filled.get("tools"):
        raise ValueError("tools: chats with tools are not read")
    field = "messages" if "messages" in filled else "conversations"
    listed = filled[field]
    if not isinstance(listed, list):
        raise ValueError(f"{field}: no list")
    messages: list[object] = []
    for number, message in enumerate(listed):
        if not isinstance(message, Mapping):
            raise ValueError(f"{field}.{number}: no object")
        if lost := next((name for name in _NOT_READ if message.get(name)), None):
            raise ValueError(f"{field}.{number}.{lost}: messages with it are not read")
        role = message.get("role", message.get("from"))
        role = _ROLES.get(role, role) if isinstance(role, str) else role
        messages.append({"role": role, "content": message.get("content", message.get("value"))})
    if field == "conversations" and filled.get("system"):
        messages.insert(0, {"role": "system", "content": filled["system"]})
    return messages


def _problem(chat: ImportedChat) -> str:
    roles = [message.role for message in chat.messages]
    spoken = roles[1:] if roles[0] == "system" else roles
    expected = ["user", "assistant"] * (len(spoken) // 2)
    if spoken != expected or not spoken:
        listed = ", ".join(r if r.isprintable() else repr(r) for r in (r[:20] for r in roles[:6]))
        return f"roles are {listed}, expected user and assistant in turn"
    if not any(reply.strip() for _, reply in chat.exchanges):
        return "its replies are empty: there is nothing to train on"
    return ""


def _lengths(tokens: ImportedTokens) -> str:
    num_ids, num_flags = len(tokens.token_ids), len(tokens.action_mask)
    if num_ids != num_flags:
        return f"{num_ids} token_ids and {num_flags} values of action_mask"
    return "" if any(tokens.action_mask[1:]) else "action_mask chooses no token to train on"
