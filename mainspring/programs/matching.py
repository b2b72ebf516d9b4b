"""Which requests mean the same, and which stored history a request continues.

Invariants: equal keys for two requests that differ only in call ids, key order or white space of
arguments, white space around a message, or the client's declared noise; never for requests that
show the model another thing. `chain` has one digest for each message, of everything up to it, so
the longest stored history that a request begins with is found by looking its digests up. A chain
that grows is not digested again from its beginning. Pure.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mainspring.programs.reply import Reply
from mainspring.programs.request import ChatMessage, ModelRequest, Role
from mainspring.trajectories.turns import Call


@dataclass(frozen=True, slots=True)
class Noise:
    """Parts of a client's prompt that differ in each run: ignored when matching only."""

    patterns: tuple[str, ...] = ()
    """Regular expressions; what they match in the text of tools' results is left out."""

    def without(self, text: str) -> str:
        for pattern in self.patterns:
            text = re.sub(pattern, "", text)
        return text


SILENT = Noise()


@dataclass(frozen=True, slots=True)
class StoredCall:
    """A stored reply that a request may continue."""

    call: Call
    history: str
    """The digest of its request and itself: see `continued`."""


@dataclass(frozen=True, slots=True)
class Chained:
    """A request with its chain."""

    request: ModelRequest
    digests: Sequence[str]
    """[num_messages] of tools and messages up to and including each message."""


def chain(
    request: ModelRequest, noise: Noise = SILENT, *, after: Chained | None = None
) -> list[str]:
    """[num_messages] the digest of tools and messages up to and including each message. Messages
    that `after`, a chain with the same noise, begins with as well are not digested again."""
    messages = request.messages
    digests = [] if after is None else list(after.digests[: _num_shared(request, after.request)])
    before = digests[-1] if digests else _digest("tools", _canonical_tools(request))
    new = messages[len(digests) :]
    places = _places(messages) if any(added.role is Role.TOOL for added in new) else {}
    for message in new:
        before = _digest(before, _canonical(message, places, noise))
        digests.append(before)
    return digests


def continued_call(
    request: ModelRequest, digests: Sequence[str], stored: Sequence[StoredCall], below: int
) -> tuple[int, Call] | None:
    """The longest stored history that the request begins with: the place of its last message, and
    its last call, of a number `below` that. `digests`: `chain` of the request."""
    last = len(digests) - 1
    while last >= 0 and request.messages[last].role is not Role.ASSISTANT:
        last -= 1
    newest = stored[-1] if stored and stored[-1].call.number < below else None
    if newest is not None and last >= 0 and newest.history == digests[last]:
        return last, newest.call  # as most requests do
    # Of calls with the same history the newest: a program that asked again uses that answer.
    served = {
        stored_call.history: stored_call.call
        for stored_call in stored
        if stored_call.call.number < below
    }
    for place in range(last, -1, -1):
        call = served.get(digests[place])
        if call is not None and request.messages[place].role is Role.ASSISTANT:
            return place, call
    return None


def key_of(request: ModelRequest, noise: Noise = SILENT) -> str:
    """Key of all that the model is shown, and of the bound on the reply."""
    return _digest(chain(request, noise)[-1], str(request.max_tokens))


def continued(chain_end: str, reply: Reply) -> str:
    """The digest after `reply` to a request whose last digest is `chain_end`: what the chain of a
    request that continues it holds at the assistant's message."""
    return _digest(chain_end, _canonical(reply.as_message(), {}, SILENT))


def _num_shared(request: ModelRequest, other: ModelRequest) -> int:
    """Number of messages that both begin with; none under other tools."""
    if request.tools != other.tools:
        return 0
    most = min(len(request.messages), len(other.messages))
    # Most often they are the same objects, which costs no comparison.
    if request.messages[:most] == other.messages[:most]:
        return most
    pairs = zip(request.messages, other.messages, strict=False)
    return next(place for place, (one, two) in enumerate(pairs) if one != two)


def _canonical_tools(request: ModelRequest) -> str:
    tools = [[tool.name, tool.description, tool.parameters] for tool in request.tools]
    return json.dumps(tools, sort_keys=True)


def _canonical(message: ChatMessage, places: dict[str, int], noise: Noise) -> str:
    text = message.text.strip()
    answers = None
    if message.role is Role.TOOL:
        text = noise.without(text)
        answers = places.get(message.call_id)
    calls = [[call.name, _canonical_json(call.arguments)] for call in message.tool_calls]
    return json.dumps([message.role.value, text, calls, answers])


def _places(messages: Sequence[ChatMessage]) -> dict[str, int]:
    """The place of each call's id among all calls: ids are made up, places are not."""
    ids: Iterable[str] = (call.id for message in messages for call in message.tool_calls)
    return {id: place for place, id in enumerate(ids)}


def _canonical_json(text: str) -> str:
    try:
        return json.dumps(json.loads(text, parse_float=_number), sort_keys=True)
    except (ValueError, RecursionError):
        return text.strip()


def _number(text: str) -> float | int:
    """Clients in JavaScript write 1.0 as 1."""
    value = float(text)
    return int(value) if value.is_integer() else value


def _digest(*parts: str) -> str:
    sha256 = hashlib.sha256()
    for part in parts:
        raw = part.encode(errors="surrogatepass")
        sha256.update(f"{len(raw)} ".encode() + raw)
    return sha256.hexdigest()
