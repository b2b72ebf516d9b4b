"""What answers, in the place of Postgres and Temporal: replies of a script; calls are recorded."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gateway.app import make_app
from gateway.protocol import Session
from gateway.server import Address, Bounds, Tls, serve
from mainspring.ids import RolloutId
from mainspring.programs.reply import Answer, Reply
from mainspring.programs.request import ModelRequest, ToolCall

KEY = "key-of-one"
OTHER_KEY = "key-of-two"


def session(name: str) -> Session:
    return Session(rollout=RolloutId(name), epoch=1, life=1, max_context=8192)


@dataclass(slots=True)
class Script:
    """Implements `Answers`."""

    replies: deque[Reply | Exception] = field(default_factory=deque)
    """Of the next requests; then `default`."""
    default: Reply = field(default_factory=lambda: Reply(text="Done."))
    asked: list[tuple[Session, ModelRequest, bool]] = field(default_factory=list)
    """With whether it was marked as a retry."""
    told: list[int] = field(default_factory=list)
    """Numbers of delivered answers."""
    num_cancelled: int = 0
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared by a test that wants clients to wait."""
    may_note: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared by a test that delays `delivered`."""
    sessions: dict[str, Session] = field(
        default_factory=lambda: {KEY: session("one"), OTHER_KEY: session("two")}
    )
    fault: Exception | None = None
    """Raised when a key is looked up."""

    note_fault: Exception | None = None
    """Raised when an answer is noted as delivered."""

    def __post_init__(self) -> None:
        self.may_answer.set()
        self.may_note.set()

    async def session(self, key: str) -> Session | None:
        if self.fault is not None:
            raise self.fault
        return self.sessions.get(key)

    async def ask(self, session: Session, request: ModelRequest, *, is_retry: bool) -> Answer:
        self.asked.append((session, request, is_retry))
        number = len(self.asked)
        reply = self.replies.popleft() if self.replies else self.default
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        if isinstance(reply, Exception):
            raise reply
        return Answer(number=number, reply=reply, num_prompt_tokens=7, num_completion_tokens=3)

    async def delivered(self, session: Session, number: int) -> None:
        await self.may_note.wait()
        self.told.append(number)
        if self.note_fault is not None:
            raise self.note_fault

    async def count_tokens(self, session: Session, request: ModelRequest) -> int:
        return sum(len(message.text.split()) for message in request.messages)

    @property
    def request(self) -> ModelRequest:
        """The last one."""
        return self.asked[-1][1]


def calling(name: str, arguments: str, text: str = "", reasoning: str = "") -> Reply:
    call = ToolCall(name=name, arguments=arguments)
    return Reply(text=text, reasoning=reasoning, tool_calls=(call,))


@asynccontextmanager
async def serving(
    script: Script,
    *,
    keep_alive_s: float = 15.0,
    tls: Tls | None = None,
    bounds: Bounds | None = None,
) -> AsyncIterator[Address]:
    app = make_app(script, keep_alive_s=keep_alive_s)
    async with serve(app, tls=tls, bounds=bounds or Bounds(shutdown_timeout_s=1)) as address:
        yield address
