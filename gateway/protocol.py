"""The seam between the dialects and what answers: sessions, replies, the end of both.

Invariants: a reply is stored before `ask` returns it; asking twice for the same gives the same
reply, whichever process is asked; text only, tokens are the policy's. Implemented on Postgres and
Temporal by `gateway.durable`, and by tests.
"""

from dataclasses import dataclass
from typing import Protocol

from mainspring.errors import MainspringError
from mainspring.ids import RolloutId
from mainspring.programs.reply import Answer
from mainspring.programs.request import ModelRequest
from mainspring.status import FaultKind


@dataclass(frozen=True, slots=True)
class Session:
    """One life of a program: who asks."""

    rollout: RolloutId
    epoch: int
    life: int
    max_context: int
    """Tokens of prompt and reply together."""
    key_sha256: str | None = None
    """Digest of the key that opened it. A life that is taken over gets another one."""


class SessionOver(MainspringError):
    """The rollout has ended, or another life of it has begun: nothing is answered any more."""

    fault = FaultKind.FENCED


class ProgramPromptTooLong(MainspringError):
    """The prompt leaves no room for a reply; the program may shorten it and ask again."""

    fault = FaultKind.POLICY_REFUSED

    def __init__(self, num_tokens: int, max_tokens: int) -> None:
        super().__init__(f"prompt is too long: {num_tokens} tokens > {max_tokens} maximum")
        self.num_tokens = num_tokens
        self.max_tokens = max_tokens


class UnrenderableRequest(MainspringError):
    """The request cannot be rendered for this model; asking again gives the same."""

    fault = FaultKind.POLICY_REFUSED


class Answers(Protocol):
    async def session(self, key: str) -> Session | None:
        """Whose key it is; None: unknown, or of a session that is over."""
        ...

    async def ask(self, session: Session, request: ModelRequest, *, is_retry: bool) -> Answer:
        """Wait for the reply, however long it takes. `is_retry`: the client marked the request as
        a repetition. Raises SessionOver, PromptTooLong, RequestRefused; DatabaseError and those of
        Temporal only when they last longer than clients wait."""
        ...

    async def delivered(self, session: Session, number: int) -> None:
        """The answer got through whole: the same request again is a new one."""
        ...

    async def count_tokens(self, session: Session, request: ModelRequest) -> int:
        """Tokens of the prompt."""
        ...
