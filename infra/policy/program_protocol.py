"""The seam between what programs ask and whatever answers it, in tokens or in text.

Invariant: a reply and what it continues follow from the request and the stored calls alone, so that
each attempt asks for the same. Implemented by `program_policy` (tokens) and `program_text_policy`;
used by the activities of replies and by the gateway.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from infra.policy.protocol import Keep, Versions
from mainspring.ids import RolloutId
from mainspring.programs.reply import Reply
from mainspring.programs.request import ModelRequest, Role
from mainspring.trajectories.turns import Call, PartialCall


@dataclass(frozen=True, slots=True)
class StoredCall:
    call: Call
    history: str
    """As `ProgramReply.history` was when it was made."""


@dataclass(frozen=True, slots=True)
class ProgramRequest:
    """The reply to one request of a program; see protocol.ReplyRequest for the other fields."""

    number: int
    """Of the call, among those of its epoch; a call continues only calls of lower numbers."""
    request: ModelRequest
    stored: Sequence[StoredCall]
    """The epoch's calls by number: those that were stored when this one was asked. `begun` was
    sampled after the prompt that follows from them, so they are the same in each attempt."""
    rollout: RolloutId
    request_id: str
    temperature: float
    versions: Versions
    seed: int | None = None
    begun: PartialCall | None = None
    keep: Keep | None = None
    num_closed: int = 0


@dataclass(frozen=True, slots=True)
class ProgramReply:
    call: Call
    """Not stored yet."""
    reply: Reply
    """What the program is told."""
    history: str
    """The digest of the request and the reply, to be stored with the call."""


class ProgramReplies(Protocol):
    """Replies to a campaign's programs. One per process and campaign, safe for concurrent calls on
    one event loop."""

    @property
    def resumes(self) -> bool:
        """Whether a reply that was lost under way is continued from its first tokens. Else it is
        asked for again, and an endpoint may have charged for both."""
        ...

    async def complete(self, ask: ProgramRequest) -> ProgramReply:
        """Raises PromptTooLong, RequestRefused, and what protocol.Policy.complete raises."""
        ...

    def reply_of(self, call: Call, request: ModelRequest) -> Reply:
        """What the program is told of a stored call: the same each time."""
        ...

    async def count(
        self, request: ModelRequest, stored: Callable[[], Awaitable[Sequence[StoredCall]]]
    ) -> int:
        """Tokens of the prompt; nothing is asked. `stored` reads the epoch's calls. Raises
        RequestRefused."""
        ...


def continued_call(
    request: ModelRequest, digests: Sequence[str], stored: Sequence[StoredCall], below: int
) -> tuple[int, Call] | None:
    """The longest stored history that the request begins with: the place of its last message, and
    its last call, of a number `below` that. `digests`: `matching.chain` of the request."""
    # Of calls with the same history the newest: a program that asked again uses that answer.
    served = {each.history: each.call for each in stored if each.call.number < below}
    for place in range(len(digests) - 1, -1, -1):
        call = served.get(digests[place])
        if call is not None and request.messages[place].role is Role.ASSISTANT:
            return place, call
    return None
