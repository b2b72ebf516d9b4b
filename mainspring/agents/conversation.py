"""The simplest way to ask: an opening, then each reply and what came of it.

Pure and deterministic. The same calls give the same messages, so an endpoint that takes text is
asked the same again after a crash, and an exported trajectory has what the policy was told.
Extended by the agents beside this file and by agents of your own.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from mainspring.agents.protocol import Command, FormatError, Message, commands_in
from mainspring.agents.record import Record
from mainspring.programs.reply import Reply
from mainspring.programs.request import ChatMessage, ModelRequest, Role, ToolSpec
from mainspring.tasks.task import Task
from mainspring.trajectories.turns import Call, Execution


class ConversationAgent(ABC):
    """Implements `protocol.Agent`, from four methods that tell less."""

    appends = True
    tools: Sequence[ToolSpec] = ()

    @abstractmethod
    def opening(self, task: Task) -> Sequence[Message]:
        """Messages that every rollout of a task begins with: the system's and the user's."""

    @abstractmethod
    def after(self, reply: Call, executions: Sequence[Execution]) -> str:
        """The user's message after `reply`: what its commands did, in their order, or how to form a
        reply. Without `executions` nothing was run. After a reply that called tools it is asked
        for the result of each call."""

    @abstractmethod
    def parse(self, reply: Reply) -> tuple[Command, ...] | FormatError:
        """See protocol.Agent."""

    @abstractmethod
    def is_done(self, execution: Execution) -> bool:
        """See protocol.Agent."""

    def request(self, task: Task, record: Record) -> ModelRequest:
        """See protocol.Agent."""
        request, new = record.last_request, record.calls[-1:]
        if request is None or not new:
            opening = map(_message, self.opening(task))
            request, new = (
                ModelRequest(messages=tuple(opening), tools=tuple(self.tools)),
                record.calls,
            )
        messages = list(request.messages)
        for call in new:
            messages += self.turn(call, record.ran(call.number))
        return request.model_copy(update={"messages": tuple(messages)})

    def turn(self, call: Call, executions: Sequence[Execution]) -> list[ChatMessage]:
        """The messages of a turn: the reply, and what came of it. For a `request` of your own."""
        if call.parts is None or not call.parts.tool_calls:
            text = call.text if call.parts is None else call.parts.text
            outcome = self.after(call, executions)
            return [
                ChatMessage(role=Role.ASSISTANT, text=text),
                ChatMessage(role=Role.USER, text=outcome),
            ]
        message = call.reply.as_message()
        parsed = commands_in(self, call.reply)
        messages = [message.model_copy(update={"tool_calls": ()})]
        for place, tool_call in enumerate(message.tool_calls):
            ident = f"call_{call.number}_{place}"
            tool_calls = (*messages[0].tool_calls, tool_call.model_copy(update={"id": ident}))
            messages[0] = messages[0].model_copy(update={"tool_calls": tool_calls})
            if isinstance(parsed, FormatError) and parsed.reason:
                outcome = f"Nothing was run: {parsed.reason}."
            else:
                outcome = self.after(call, executions[place : place + 1])
            messages.append(ChatMessage(role=Role.TOOL, text=outcome, call_id=ident))
        return messages


def _message(message: Message) -> ChatMessage:
    return ChatMessage(role=Role(message["role"]), text=message["content"])
