"""A program's messages as one chat template takes them.

Invariant: nothing that the program said is left out, whatever the template lacks: tools are
described in the system's message, their results and later instructions of the system become
messages of the user, calls that the template cannot write become text, as Hermes models write
them. Ids that the client made up are not shown. Pure; used by `request_text`.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from infra.policy.model.template_facts import Message, TemplateFacts
from mainspring.programs.request import ChatMessage, Role, ToolCall, ToolSpec

BETWEEN = "\n\n"
"""Between texts that become one message."""
TOOLS = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""
"""For a template that knows no tools: the words that Hermes and Qwen were trained with."""


def template_tools(facts: TemplateFacts, tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    return [described(tool) for tool in tools] if facts.tools else []


def first_messages(
    facts: TemplateFacts, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]
) -> list[Message]:
    """All of a conversation."""
    rest = list(messages)
    rules: list[str] = []
    while rest and rest[0].role is Role.SYSTEM:
        rules.append(rest.pop(0).text)
    if tools and not facts.tools:
        lines = (json.dumps(described(tool), ensure_ascii=False) for tool in tools)
        rules.append(TOOLS.format(tools="\n".join(lines)))
    chat = later_messages(facts, rest)
    system = BETWEEN.join(rule for rule in rules if rule)
    if system and facts.system:
        return [{"role": "system", "content": system}, *chat]
    if system:
        chat = [{"role": "user", "content": system}, *chat]
    return chat if facts.repeated_user else _joined(chat)


def later_messages(facts: TemplateFacts, messages: Iterable[ChatMessage]) -> list[Message]:
    """Those after the beginning."""
    chat: list[Message] = []
    after_result = False
    for message in messages:
        is_result = message.role is Role.TOOL and not facts.tool_role
        if is_result and after_result:
            # Results of one reply's calls stand together, as templates with the role put them.
            chat[-1]["content"] += f"\n{_response(message.text)}"
        else:
            chat.append(_message(facts, message))
        after_result = is_result
    return chat if facts.repeated_user else _joined(chat)


def _message(facts: TemplateFacts, message: ChatMessage) -> Message:
    match message.role:
        case Role.SYSTEM if facts.later_system:
            return {"role": "system", "content": message.text}
        case Role.TOOL if facts.tool_role:
            return {"role": "tool", "content": message.text}
        case Role.TOOL:
            return {"role": "user", "content": _response(message.text)}
        case Role.ASSISTANT:
            return _invented(facts, message)
        case Role.SYSTEM | Role.USER:
            return {"role": "user", "content": message.text}


def _invented(facts: TemplateFacts, message: ChatMessage) -> Message:
    """Message of the assistant, as the program claims it."""
    calls = message.tool_calls
    arguments = [as_object(call.arguments) for call in calls]
    fits = len(calls) <= facts.num_calls and (facts.calls_with_text or not message.text)
    if calls and fits and None not in arguments:
        tool_calls = [
            {"type": "function", "function": {"name": call.name, "arguments": call_arguments}}
            for call, call_arguments in zip(calls, arguments, strict=True)
        ]
        return {"role": "assistant", "content": message.text, "tool_calls": tool_calls}
    text = "\n".join([message.text.strip(), *map(call_as_text, calls)]).strip()
    return {"role": "assistant", "content": text if calls else message.text}


def _joined(messages: Sequence[Message]) -> list[Message]:
    """Messages of the user in a row as one."""
    chat: list[Message] = []
    for message in messages:
        if chat and message["role"] == chat[-1]["role"] == "user":
            text = f"{chat[-1]['content']}{BETWEEN}{message['content']}"
            chat[-1] = {"role": "user", "content": text}
        else:
            chat.append(message)
    return chat


def described(tool: ToolSpec) -> dict[str, Any]:
    about = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": about}


def _response(text: str) -> str:
    return f"<tool_response>\n{text}\n</tool_response>"


def call_as_text(call: ToolCall) -> str:
    arguments = as_object(call.arguments)
    value: object = call.arguments if arguments is None else arguments
    body = json.dumps({"name": call.name, "arguments": value}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def as_object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
