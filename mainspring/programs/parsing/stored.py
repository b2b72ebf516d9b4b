"""A stored call as the reply that its program was told: the same each time it is asked for.

Pure. Imported by what answers programs.
"""

from collections.abc import Sequence

from mainspring.programs.parsing.protocol import Parser
from mainspring.programs.reply import Reply
from mainspring.programs.request import ToolSpec
from mainspring.trajectories.turns import Call


def reply_of(call: Call, tools: Sequence[ToolSpec], parser: Parser) -> Reply:
    """`parser` is for calls in tokens: an endpoint has taken its reply apart itself."""
    if call.parts is not None:
        return call.parts
    return parser(call.text, tools, call.finish_reason == "length")
