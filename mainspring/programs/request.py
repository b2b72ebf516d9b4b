"""Requests to the policy: by a program, in one form for all dialects, or by an agent of ours.

Invariants: it holds all that the model is shown, in order, and nothing that differs between two
runs of the same program but what the program itself shows the model; text is as the client sent it.
A program's is made by the gateway's dialects and stored as JSON; an agent's follows from the record
of its rollout. Rendered into tokens by `infra.policy`. Pure.
"""

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict


class Dialect(StrEnum):
    """The API that a client speaks."""

    CHAT = "chat"
    """OpenAI's chat completions."""
    RESPONSES = "responses"
    """OpenAI's responses."""
    MESSAGES = "messages"
    """Anthropic's messages."""
    GEMINI = "gemini"
    """Gemini's generateContent."""


class Role(StrEnum):
    """Who a message is from."""

    SYSTEM = "system"
    """The program's own instructions; a developer message as well."""
    USER = "user"
    """The task, and what the program adds."""
    ASSISTANT = "assistant"
    """The policy, or what the program claims that it said."""
    TOOL = "tool"
    """The result of one tool call."""


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ToolCall(Frozen):
    name: str
    arguments: str
    """A JSON object as text; anything else when the policy wrote no JSON."""
    id: str = ""
    """As the client names it; never shown to the model."""


class ChatMessage(Frozen):
    role: Role
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls of an assistant's message."""
    call_id: str = ""
    """Id in a tool's message: the call that it answers."""


class ToolSpec(Frozen):
    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    """A JSON schema."""


class ModelRequest(Frozen):
    dialect: Dialect = Dialect.CHAT
    """Without meaning in an agent's request."""
    model: str = ""
    """As the client names it."""
    messages: tuple[ChatMessage, ...]
    """At least one; the system's come where the client put them."""
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int | None = None
    """Lowers the campaign's own bound; None: that bound."""
    is_subagent: bool = False
    """The client marked it as a sub-agent's."""
    ignored: tuple[str, ...] = ()
    """Names of fields that were sent and have no effect, for the record."""
