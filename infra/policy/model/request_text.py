"""Requests of programs as token arithmetic: the first prompt whole, then only what is new.

Invariants: tokens of earlier calls are never rendered again; no text of a program (messages, tools,
schemas, arguments) becomes a special token, alone or beside another; the template's own do. Safe
for several threads. Used by `program_policy`.
"""

import hashlib
import json
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from infra.policy.model.request_messages import first_messages, later_messages, template_tools
from infra.policy.model.special_marks import Guard, SpecialTexts
from infra.policy.model.template_facts import Message, find_facts
from infra.policy.model.tokenizer import BASE, REPLY, ChatTokenizer
from infra.policy.protocol import RequestRefused
from mainspring.errors import ModelError
from mainspring.programs.request import ChatMessage, ToolSpec

TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>")
"""What parsers look for. Some tokenizers call these special tokens, others do not."""
NUM_KEPT = 64
"""First prompts that are kept: those of a group's rollouts are the same, and take up to 200 ms."""


class RequestText:
    def __init__(self, chat: ChatTokenizer) -> None:
        """Raises ModelError when the template drops what was said."""
        self._chat = chat
        self._special = SpecialTexts(chat.special_texts)
        self.facts = find_facts(chat.render, chat.directory)
        special = set(chat.special_texts)
        self._tags = {chat.vocabulary[tag]: tag for tag in TAGS if tag in special}
        self._first: OrderedDict[bytes, array[int]] = OrderedDict()
        self._keeping = threading.Lock()

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return self._chat.stop_token_ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of a reply for people and for the parser, without special tokens but TAGS. It begins
        with what the template wrote of it: the tag of its reasoning."""
        pieces, plain = [self.facts.opening], list[int]()
        for token in ids:
            if token in self._tags:
                pieces += [self._chat.decode(plain), self._tags[token]]
                plain = []
            else:
                plain.append(token)
        return "".join([*pieces, self._chat.decode(plain)])

    def first_ids(
        self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]
    ) -> tuple[int, ...]:
        """The whole prompt, up to where the reply begins. Raises RequestRefused."""
        made = first_messages(self.facts, messages, tools)
        described = template_tools(self.facts, tools)
        key = hashlib.sha256(json.dumps([made, described]).encode()).digest()
        with self._keeping:
            if key in self._first:
                self._first.move_to_end(key)
                return tuple(self._first[key])
        ids = tuple(self._encoded([made, described], lambda shown: self._render(*shown)))
        with self._keeping:
            self._first[key] = array("i", ids)
            while len(self._first) > NUM_KEPT:
                self._first.popitem(last=False)
        return ids

    def next_ids(self, messages: Sequence[ChatMessage], *, closed: bool) -> tuple[int, ...]:
        """Only the tokens to append after a served reply: `messages`, which may be none, and the
        next reply's beginning. `closed`: the reply ended with its end token; else that comes
        first. Raises RequestRefused."""
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
