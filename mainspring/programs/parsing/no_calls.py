"""Replies of a policy that is asked for text alone: reasoning is taken out. Pure."""

from collections.abc import Sequence

from mainspring.programs.parsing.json_call import encodable
from mainspring.programs.parsing.reasoning import split_reasoning
from mainspring.programs.reply import Reply
from mainspring.programs.request import ToolSpec


def parse(text: str, tools: Sequence[ToolSpec], is_cut: bool) -> Reply:
    """See protocol.Parser."""
    reasoning, rest = split_reasoning(encodable(text))
    return Reply(text=rest, reasoning=reasoning, is_cut=is_cut)
