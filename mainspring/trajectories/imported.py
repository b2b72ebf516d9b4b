"""One line of an imported JSONL file: a chat, or tokens. Pure.

A chat is an object with "messages", as `mainspring rollout export --format sft` writes it: an
optional system message, then user and assistant in turn, an assistant's last. What an "assistant"
wrote is trained on. Tokens are "token_ids" and "action_mask", of one length. Other fields are
ignored.
"""

import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mainspring.errors import UsageError

_SHAPES = (
    'each line is a JSON object with "messages" (as `mainspring rollout export --format sft` '
    'writes them), or with "token_ids" and "action_mask"'
)


class ChatMessage(BaseModel):
    model_config = ConfigDict(frozen=True)

    role: str
    content: str


class Chat(BaseModel):
    model_config = ConfigDict(frozen=True)

    messages: Annotated[list[ChatMessage], Field(min_length=2)]

    @property
    def system(self) -> str:
        """Empty where there is none."""
        return self.messages[0].content if self.messages[0].role == "system" else ""

    @property
    def exchanges(self) -> list[tuple[str, str]]:
        """What was asked and what was replied."""
        spoken = [message.content for message in self.messages if message.role != "system"]
        return list(zip(spoken[::2], spoken[1::2], strict=True))


class Tokens(BaseModel):
    model_config = ConfigDict(frozen=True)

    token_ids: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=2)]
    action_mask: list[bool]


def read_line(text: str, where: str) -> Chat | Tokens:
    """`where`: file and line, for messages. Raises UsageError."""
    try:
        given: Any = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{where}: not JSON: {error}", remedy=_SHAPES) from None
    if not isinstance(given, dict) or not given.keys() & {"messages", "token_ids"}:
        raise UsageError(f"{where}: neither messages nor token_ids", remedy=_SHAPES)
    shape = Chat if "messages" in given else Tokens
    try:
        found = shape.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise UsageError(f"{where}: {field}: {first['msg']}", remedy=_SHAPES) from None
    problem = _roles(found) if isinstance(found, Chat) else _lengths(found)
    if problem:
        raise UsageError(f"{where}: {problem}", remedy=_SHAPES)
    return found


def _roles(chat: Chat) -> str:
    roles = [message.role for message in chat.messages]
    spoken = roles[1:] if roles[0] == "system" else roles
    expected = ["user", "assistant"] * (len(spoken) // 2)
    if spoken == expected and spoken:
        return ""
    return f"roles are {', '.join(roles[:6])}, expected user and assistant in turn"


def _lengths(tokens: Tokens) -> str:
    num_ids, num_flags = len(tokens.token_ids), len(tokens.action_mask)
    if num_ids != num_flags:
        return f"{num_ids} token_ids and {num_flags} values of action_mask"
    return "" if any(tokens.action_mask[1:]) else "action_mask chooses no token to train on"
