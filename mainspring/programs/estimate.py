"""About how many tokens a text has, where no tokenizer of the model is known: an endpoint's.

Invariant: an estimate is never stored, and what the endpoint counted takes its place. Pure.
"""

from collections.abc import Iterable

from mainspring.programs.reply import Reply
from mainspring.programs.request import ChatMessage, ModelRequest

BYTES_PER_TOKEN = 4
"""Bytes of UTF-8: English and code have about 3.5 to 4.5 in the vocabularies of today."""
MESSAGE_BYTES = 16
"""For a message's role and its marks."""


def tokens_of_request(request: ModelRequest) -> int:
    """Tokens of the whole prompt, its tools included."""
    tools = sum(len(tool.model_dump_json().encode()) for tool in request.tools)
    return _tokens(tools) + tokens_of_messages(request.messages)


def tokens_of_messages(messages: Iterable[ChatMessage]) -> int:
    return _tokens(sum(MESSAGE_BYTES + _num_bytes(message) for message in messages))


def tokens_of_reply(reply: Reply) -> int:
    return _tokens(_num_bytes(reply) + len(reply.reasoning.encode()))


def _num_bytes(message: ChatMessage | Reply) -> int:
    calls = "".join(call.name + call.arguments for call in message.tool_calls)
    return len((message.text + calls).encode())


def _tokens(num_bytes: int) -> int:
    return -(-num_bytes // BYTES_PER_TOKEN)
