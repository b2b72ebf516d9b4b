"""A reply as programs take it: text, reasoning and tool calls, parsed from what was sampled.

Pure. Made from a stored call's text by `parsing`, written in each dialect by the gateway.
"""

from enum import StrEnum

from mainspring.programs.request import ChatMessage, Frozen, Role, ToolCall


class Finish(StrEnum):
    """Why a reply ended, as clients are told."""

    STOP = "stop"
    """The policy ended it."""
    TOOL_CALLS = "tool_calls"
    """It asks for tools."""
    LENGTH = "length"
    """It was cut at a bound on tokens."""


class Reply(Frozen):
    text: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """Their ids are empty; `answer` gives them."""
    is_cut: bool = False

    @property
    def finish(self) -> Finish:
        if self.is_cut:
            return Finish.LENGTH
        return Finish.TOOL_CALLS if self.tool_calls else Finish.STOP

    def as_message(self) -> ChatMessage:
        """As the program will send it back: without reasoning."""
        return ChatMessage(role=Role.ASSISTANT, text=self.text, tool_calls=self.tool_calls)


class Answer(Frozen):
    """A stored reply, ready to be told."""

    number: int
    """Number of the call, among those of its epoch; ids in the answer are made from it."""
    reply: Reply
    num_prompt_tokens: int
    """Tokens of the whole prompt."""
    num_completion_tokens: int

    def call_id(self, index: int) -> str:
        return f"call_{self.number}_{index}"
