"""Requests as the bundled model is served them, in tokens.

Invariant: the same tokens as `infra.policy.model.request_text` makes with this model's tokenizer; a
test compares them. The trainer, which teaches the form, does not import that.
"""

import json
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from mainspring.programs.request import ChatMessage, ToolSpec


class ServedText:
    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def first_ids(self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]) -> list[int]:
        """Tokens of a whole prompt, up to where the reply begins."""
        return self._encoded(self.rendered(messages, tools))

    def next_ids(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Tokens that follow a reply and its end token."""
        return self._encoded(f"\n{self.rendered(messages, ())}")

    def reply_ids(self, text: str) -> list[int]:
        """Tokens of a reply, its end token included."""
        return self._encoded(f"{text}{self._tokenizer.eos_token}")

    def rendered(self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]) -> str:
        """A whole prompt as the chat template writes it."""
        return str(
            self._tokenizer.apply_chat_template(
                [{"role": each.role.value, "content": text_of(each)} for each in messages],
                tools=[_described(tool) for tool in tools] or None,  # type: ignore[arg-type]
                add_generation_prompt=True,
                tokenize=False,
            )
        )

    def _encoded(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def text_of(message: ChatMessage) -> str:
    """Text of a message; an earlier reply has its calls as the model writes them."""
    if not message.tool_calls:
        return message.text
    calls = [
        json.dumps({"name": call.name, "arguments": json.loads(call.arguments)}, ensure_ascii=False)
        for call in message.tool_calls
    ]
    return "\n".join([message.text, *(f"<tool_call>\n{call}\n</tool_call>" for call in calls)])


def _described(tool: ToolSpec) -> dict[str, Any]:
    about = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": about}
