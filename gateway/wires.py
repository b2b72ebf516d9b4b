"""Which dialect a path is read in: also that of errors on routes that belong to none.

Pure. Imported by the gateway's application and the edge's.
"""

from starlette.datastructures import Headers

from gateway.dialects.chat import Chat
from gateway.dialects.gemini import Gemini
from gateway.dialects.messages import Messages
from gateway.dialects.protocol import DialectWire
from gateway.dialects.responses import Responses

CHAT, RESPONSES, MESSAGES, GEMINI = Chat(), Responses(), Messages(), Gemini()
GEMINI_METHODS = ("generateContent", "streamGenerateContent", "countTokens")


def wire_of(path: str, headers: Headers) -> DialectWire:
    """The dialect that a client of this path reads errors in."""
    if "/v1beta" in path or path.rpartition(":")[2] in GEMINI_METHODS:
        return GEMINI
    if "/v1/messages" in path or "anthropic-version" in headers:
        return MESSAGES
    return GEMINI if "x-goog-api-key" in headers else CHAT
