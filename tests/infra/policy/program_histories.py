"""Programs that rewrite, repeat and forge their histories, against an engine that says anything.

A history is a list of steps and a seed for their details. `play` runs it through the policy as the
gateway would, and gives what the engine consumed and produced beside the calls that are stored.
"""

import json
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any

from transformers import PreTrainedTokenizerFast

from infra.policy.model.request_text import RequestText
from infra.policy.protocol import ANY, MadeReply, ReplyRequest
from infra.policy.replies.token_policy import TokenPolicy
from mainspring.config.policy import PolicyConfig
from mainspring.ids import RolloutId
from mainspring.programs.matching import StoredCall
from mainspring.programs.parsing.choice import parser_of
from mainspring.programs.request import (
    ChatMessage,
    Dialect,
    ModelRequest,
    Role,
    ToolCall,
    ToolSpec,
)
from tests.infra.policy.scripted_engines import ScriptedEngines, no_weights

FORGED = (
    *("<|im_end|>", "<|im_start|>assistant\n", "<|endoftext|>", "<|sep|>", "<|im_", "end|>", "<"),
    *("</think>", "<tool_call>", "</tool_response>", "mark0f8c1d0x", "reply-0f8c1d"),
)
WORDS = ("calc.py", " def add(a, b):", "\n", " return", " a - b", " caf\u00e9 \u2603", "  ", "x")
SPAN_TOKENS = 400


class Step(Enum):
    EXTEND = auto()
    EXTEND_TWICE = auto()
    EDIT = auto()
    FORGET = auto()
    SUB_AGENT = auto()
    TITLE = auto()
    COMPACT = auto()
    RETRY = auto()
    ASK_TWICE = auto()
    INVENT = auto()
    REMIND = auto()
    REFUSED = auto()


@dataclass(slots=True)
class Talk:
    """One conversation of the program, as the program holds it."""

    messages: list[ChatMessage]
    tools: tuple[ToolSpec, ...]
    expected: MadeReply | None = None
    """The call that its next request extends, unless it is rewritten."""


@dataclass(slots=True)
class History:
    text: RequestText
    tokenizer: PreTrainedTokenizerFast
    rng: random.Random
    engines: ScriptedEngines = field(init=False)
    policy: TokenPolicy = field(init=False)
    stored: list[StoredCall] = field(default_factory=list)
    requests: dict[int, ModelRequest] = field(default_factory=dict)
    talks: list[Talk] = field(default_factory=list)
    number: int = 0
    num_ids: int = 0

    def __post_init__(self) -> None:
        self.engines = ScriptedEngines(self._says)
        self.policy = TokenPolicy(
            PolicyConfig(max_context=200_000, max_new_tokens=SPAN_TOKENS),
            self.engines,
            self.text,
            parser_of("hermes"),
            no_weights,
        )

    async def play(self, steps: list[Step]) -> None:
        self.talks.append(Talk([self._system(), self._user()], self._tools()))
        await self._ask(self.talks[0])
        for step in steps:
            await self._step(step, self.rng.choice(self.talks))

    async def _step(self, step: Step, talk: Talk) -> None:
        match step:
            case Step.EXTEND | Step.EXTEND_TWICE:
                for _ in range(2 if step is Step.EXTEND_TWICE else 1):
                    self._answer(talk)
                    await self._ask(talk)
            case Step.EDIT:
                place = self.rng.randrange(len(talk.messages))
                edited = talk.messages[place].model_copy(update={"text": self._words()})
                talk.messages[place] = edited
                talk.expected = None
                self._answer(talk)
                await self._ask(talk)
            case Step.FORGET:
                del talk.messages[self.rng.randrange(2, len(talk.messages) + 1) :]
                talk.expected = None
                if talk.messages[-1].role is Role.ASSISTANT:
                    self._answer(talk)
                await self._ask(talk)
            case Step.SUB_AGENT | Step.TITLE:
                tools = self._tools() if step is Step.SUB_AGENT else ()
                made = Talk([self._system(), self._user()], tools)
                if step is Step.SUB_AGENT:
                    self.talks.append(made)
                await self._ask(made)
            case Step.COMPACT:
                whole = Talk([self._system(), self._user()], ())
                await self._ask(whole)
                talk.messages = [talk.messages[0], *whole.messages[2:], self._user()]
                if self.rng.random() < 0.5:
                    summary = whole.messages[2].text
                    talk.messages[1:2] = [ChatMessage(role=Role.USER, text=summary)]
                talk.expected = None
                await self._ask(talk)
            case Step.RETRY:
                self._answer(talk)
                lost = replace(talk, messages=list(talk.messages))
                await self._ask(lost)
                await self._ask(talk)
            case Step.ASK_TWICE:
                # At the same time: neither knows of the other, and the later is stored first.
                self._answer(talk)
                other = replace(talk, messages=list(talk.messages))
                known = list(self.stored)
                self.number += 1
                await self._ask(other, known=known)
                await self._ask(talk, known=known, number=self.number - 2)
                self.stored.sort(key=lambda each: each.call.number)
                self.talks.append(other)
            case Step.INVENT:
                self._answer(talk)
                invented = ChatMessage(
                    role=Role.ASSISTANT, text=self._words(), tool_calls=self._invented_calls()
                )
                talk.messages += [invented, self._user()]
                await self._ask(talk)
            case Step.REMIND:
                self._answer(talk)
                talk.messages.append(ChatMessage(role=Role.SYSTEM, text=self._words()))
                if self.rng.random() < 0.5:
                    talk.messages.append(self._user())
                await self._ask(talk)
            case Step.REFUSED:
                self.number += 1  # a request of its own that no call came of

    async def _ask(
        self, talk: Talk, known: list[StoredCall] | None = None, number: int | None = None
    ) -> None:
        if number is None:
            number = self.number
            self.number += 1
        request = ModelRequest(
            dialect=Dialect.CHAT,
            model="any",
            messages=tuple(talk.messages),
            tools=talk.tools,
            max_tokens=self.rng.choice((None, None, None, 3, 12)),
        )
        # As it comes back from the store.
        request = ModelRequest.model_validate_json(self._sent(request).model_dump_json())
        made = await self.policy.complete(
            ReplyRequest(
                number=number,
                request=request,
                stored=self.stored if known is None else known,
                rollout=RolloutId("r"),
                request_id=str(number),
                temperature=1.0,
                versions=ANY,
            )
        )
        if talk.expected is not None:
            parent = {each.call.number: each for each in self.stored}[made.call.parent or 0]
            assert made.call.parent is not None, "an extension begins a branch of its own"
            assert parent.history == talk.expected.history
        self.stored.append(StoredCall(made.call, made.history))
        self.requests[number] = request
        talk.messages.append(self._echo(made))
        talk.expected = made

    def _sent(self, request: ModelRequest) -> ModelRequest:
        """As it arrives."""
        return request

    def _echo(self, made: MadeReply) -> ChatMessage:
        """As clients send it back."""
        text = made.reply.text
        calls = tuple(
            ToolCall(name=call.name, arguments=self._written(call.arguments), id=self._id())
            for call in made.reply.tool_calls
        )
        text = self.rng.choice((text, text.strip(), f"{text}\n"))
        return ChatMessage(role=Role.ASSISTANT, text=text, tool_calls=calls)

    def _written(self, arguments: str) -> str:
        found = json.loads(arguments)
        keys = sorted(found) if self.rng.random() < 0.5 else sorted(found, reverse=True)
        indent = self.rng.choice((None, 1))
        return json.dumps({key: found[key] for key in keys}, indent=indent)

    def _answer(self, talk: Talk) -> None:
        """What follows the last reply: results of its calls, or another message of the user."""
        last = talk.messages[-1]
        if last.role is not Role.ASSISTANT:
            return
        talk.messages += [
            ChatMessage(role=Role.TOOL, text=self._words(), call_id=call.id)
            for call in last.tool_calls
        ]
        if not last.tool_calls or self.rng.random() < 0.1:
            talk.messages.append(self._user())

    def _says(self, bound: int) -> tuple[list[int], list[int]]:
        """A reply, and before which of its tokens new weights arrive."""
        rng, ends = self.rng, self.text.stop_token_ids
        kind = rng.random()
        if kind < 0.35:
            ids = self._ids(self._words())
        elif kind < 0.8:
            ids = self._ids(self._called())
        elif kind < 0.9:
            ids = [rng.randrange(len(self.tokenizer)) for _ in range(rng.randrange(1, 20))]
        else:
            ids = []  # only its end
        ids = [i for i in ids if i not in ends]
        cut = rng.random() < 0.1 and len(ids) >= bound
        made = ids if cut else [*ids, rng.choice(ends)]
        updates = [rng.randrange(len(made)) for _ in range(rng.choice((0, 0, 1, 2)))]
        return made, updates

    def _ids(self, text: str) -> list[int]:
        """Tokens of a text: its own, or others that are written the same."""
        rng = self.rng
        encode: Any = self.tokenizer.encode
        if rng.random() < 0.4:
            return encode(text, add_special_tokens=False)
        if rng.random() < 0.3:
            return encode(text, add_special_tokens=False, split_special_tokens=True)
        pieces: list[int] = []
        while text:
            length = rng.randrange(1, 6)
            pieces += encode(text[:length], add_special_tokens=False)
            text = text[length:]
        return pieces

    def _called(self) -> str:
        thought = self.rng.choice(("", f"<think>\n{self._words()}\n</think>\n\n"))
        calls = "\n".join(
            f"<tool_call>\n{json.dumps({'name': self._name(), 'arguments': self._arguments()})}\n"
            f"{self.rng.choice(('</tool_call>', '</tool_call>', ''))}"
            for _ in range(self.rng.randrange(3))
        )
        return thought + self.rng.choice(("", self._words())) + calls

    def _invented_calls(self) -> tuple[ToolCall, ...]:
        return tuple(
            ToolCall(
                name=self._name(),
                arguments=self.rng.choice((json.dumps(self._arguments()), self._words())),
                id=self._id(),
            )
            for _ in range(self.rng.randrange(3))
        )

    def _tools(self) -> tuple[ToolSpec, ...]:
        return tuple(
            ToolSpec(
                name=self._name(),
                description=self._words(),
                parameters={
                    "type": "object",
                    "properties": {self._name(): {"type": "string", "description": self._words()}},
                    "required": [self._words()],
                },
            )
            for _ in range(self.rng.randrange(1, 3))
        )

    def _arguments(self) -> dict[str, Any]:
        return {
            self._name(): self.rng.choice((self._words(), 1, 2.5, None, [self._words()]))
            for _ in range(self.rng.randrange(3))
        }

    def _words(self) -> str:
        few = [
            self.rng.choice(FORGED if self.rng.random() < 0.25 else WORDS)
            for _ in range(self.rng.randrange(1, 6))
        ]
        return "".join(few)

    def _name(self) -> str:
        return self.rng.choice(("bash", "edit", "view", *FORGED[:2]))

    def _id(self) -> str:
        self.num_ids += 1
        return f"call_{self.rng.randrange(10**6)}_{self.num_ids}"

    def _system(self) -> ChatMessage:
        return ChatMessage(role=Role.SYSTEM, text=self._words())

    def _user(self) -> ChatMessage:
        return ChatMessage(role=Role.USER, text=self._words())


@dataclass(slots=True)
class Figures:
    """Of many histories."""

    counts: Counter[str] = field(default_factory=Counter)

    def add(self, history: History) -> None:
        extended = [each.call for each in history.stored if each.call.parent is not None]
        self.counts["histories"] += 1
        self.counts["calls"] += len(history.stored)
        self.counts["calls that extend another"] += len(extended)
        self.counts["tokens sampled"] += history.engines.num_sampled
        self.counts["calls under several versions"] += sum(
            len(each.call.spans) > 1 for each in history.stored
        )
        self.counts["cut replies"] += sum(
            each.call.finish_reason == "length" for each in history.stored
        )
        if extended:
            self.counts["histories with an extension"] += 1
            self.counts["of these broken when rendered anew"] += any(
                self._breaks(history, call.number) for call in extended
            )

    def _breaks(self, history: History, number: int) -> bool:
        request = history.requests[number]
        anew = history.text.first_ids(request.messages, request.tools)
        return list(anew) != history.engines.served[str(number)].consumed

    def __str__(self) -> str:
        return ", ".join(f"{name}: {count}" for name, count in self.counts.items())
