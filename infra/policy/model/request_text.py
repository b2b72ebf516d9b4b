"""Requests as token arithmetic: the first prompt whole, then only what is new.

Invariants: tokens of earlier calls are never rendered again; no text of a program (messages, tools,
schemas, arguments) becomes a special token, alone or beside another; the template's own do. What an
agent of ours asks in the plainest form (instructions and a task, then one message of the user at a
time) is rendered as `ChatTokenizer` renders it: its instructions are Mainspring's own, and the
template needs to show no more than these. Safe for several threads. Implements `protocol.ChatText`.
"""

import hashlib
import json
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from infra.policy.model.request_messages import first_messages, later_messages, template_tools
from infra.policy.model.special_marks import Guard, SpecialTexts
from infra.policy.model.template_facts import Message, TemplateFacts, find_facts
from infra.policy.model.tokenizer import BASE, REPLY, ChatTokenizer
from infra.policy.protocol import RequestRefused
from mainspring.errors import ModelError
from mainspring.programs.request import ChatMessage, Role, ToolSpec

TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>")
"""Texts that parsers look for. Some tokenizers call these special tokens, others do not."""
NUM_KEPT = 64
"""First prompts that are kept: those of a group's rollouts are the same, and take up to 200 ms."""

_OPENINGS = ([Role.SYSTEM, Role.USER], [Role.USER])
"""Roles of the first messages of a rollout, in their plainest form."""


class RequestText:
    def __init__(self, chat: ChatTokenizer, *, plain: bool = False) -> None:
        """`plain`: for an agent of ours. Raises ModelError when the template drops what was said;
        a plain one does where an agent asks in a richer form."""
        self._chat = chat
        self._plain = plain
        self._special = SpecialTexts(chat.special_texts)
        special = set(chat.special_texts)
        self._tags = {chat.vocabulary[tag]: tag for tag in TAGS if tag in special}
        self._first: OrderedDict[bytes, array[int]] = OrderedDict()
        self._under: dict[str, RequestText] = {}
        """The same with other variables, by their JSON: a campaign has a few."""
        self._keeping = threading.Lock()
        if not plain:
            _ = self.facts

    @cached_property
    def facts(self) -> TemplateFacts:
        return find_facts(self._chat.render, self._chat.directory)

    def under(self, variables: Mapping[str, Any]) -> "RequestText":
        """See protocol.ChatText."""
        if variables == self._chat.variables:
            return self
        key = json.dumps(variables, sort_keys=True)
        if key not in self._under:  # made twice at worst, and alike
            self._under[key] = RequestText(self._chat.under(variables), plain=self._plain)
        return self._under[key]

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return self._chat.stop_token_ids

    def decode(self, ids: Sequence[int], *, apart: bool = True) -> str:
        """Text of a reply for people and for parsers, without special tokens. `apart`: but TAGS,
        and it begins with what the template wrote of it: the tag of its reasoning."""
        if not apart:
            return self._chat.decode(tuple(ids))
        pieces, plain = [self.facts.opening], list[int]()
        for token in ids:
            if token in self._tags:
                pieces += [self._chat.decode(plain), self._tags[token]]
                plain = []
            else:
                plain.append(token)
        return "".join([*pieces, self._chat.decode(plain)])

    def written(self, ids: Sequence[int]) -> str:
        """See protocol.ChatText."""
        return self._chat.written(ids)

    def first_ids(
        self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]
    ) -> tuple[int, ...]:
        """See protocol.ChatText."""
        roles = [message.role for message in messages]
        if self._plain and not tools and roles in _OPENINGS:
            system = messages[0].text if len(messages) > 1 else ""
            return tuple(self._chat.prompt_ids(system, messages[-1].text))
        chat = first_messages(self.facts, messages, tools)
        described = template_tools(self.facts, tools)
        key = hashlib.sha256(json.dumps([chat, described]).encode()).digest()
        with self._keeping:
            if key in self._first:
                self._first.move_to_end(key)
                return tuple(self._first[key])
        ids = tuple(self._encoded([chat, described], lambda shown: self._render(*shown)))
        with self._keeping:
            self._first[key] = array("i", ids)
            while len(self._first) > NUM_KEPT:
                self._first.popitem(last=False)
        return ids

    def next_ids(self, messages: Sequence[ChatMessage], *, closed: bool) -> tuple[int, ...]:
        """See protocol.ChatText."""
        if self._plain and [message.role for message in messages] == [Role.USER]:
            return tuple(self._chat.next_prompt_ids(messages[0].text, closed=closed))
        ids = self._encoded(
            later_messages(self.facts, messages),
            lambda shown: self._render([*BASE, *shown], []).partition(REPLY)[2],
        )
        closing = self._chat.closing_ids
        if tuple(ids[: len(closing)]) != closing:
            raise ModelError(
                f"model directory {self._chat.directory}: the chat template writes an earlier "
                "reply in another way when other messages follow it",
                remedy="a reply must stay as it was sampled: change chat_template",
            )
        return tuple(ids[len(closing) :] if closed else ids)

    def _render(self, messages: Sequence[Message], tools: Sequence[Any]) -> str:
        try:
            return self._chat.render(messages, tools)
        except ModelError as error:
            raise RequestRefused(error.message) from error

    def _encoded(self, texts: Any, render: Callable[[Any], str]) -> list[int]:
        """Tokens of what `render` makes of `texts`, whose special tokens stay text."""
        guard = Guard(self._special)
        rendered = render(guard.guarded(texts))
        if guard.has_inside:
            strict = Guard(self._special, marks_inside=True)
            with suppress(RequestRefused):  # the template asks for one of those words
                other = render(strict.guarded(texts))
                if self._special.count(other) != self._special.count(rendered):
                    guard, rendered = strict, other
        ids: list[int] = []
        for piece, is_text in guard.split(rendered):
            ids += self._chat.encode_plain(piece) if is_text else self._chat.encode(piece)
        return ids
