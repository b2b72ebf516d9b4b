"""Turns as recorded: a call of the policy, token by token, and what its commands did.

Invariant 4 lives here: tokens are stored as served and never re-derived. A call stores only the
tokens that are new since its parent, so the sequence of a branch is the concatenation over its path
of `prompt_ids` + `completion_ids`. `tree` puts calls together and proves that nothing is missing.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

from mainspring.errors import MainspringError
from mainspring.programs.reply import Reply
from mainspring.programs.request import ModelRequest
from mainspring.status import FaultKind


class BrokenTrajectory(MainspringError):
    """Stored turns do not line up: a bug, or rows edited by hand. Never train on it."""

    fault = FaultKind.BROKEN_TRAJECTORY


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Completion tokens [start, end) were sampled under policy `version`."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Call:
    """One reply of the policy, exactly as served."""

    number: int
    """Its place among the calls of its epoch, from 0; also the number of its turn."""
    parent: int | None
    """The call whose tokens it extends; None: it begins a branch of its own."""
    prompt_start: int
    """Position in its branch's sequence where `prompt_ids` begins: the end of its parent."""
    prompt_ids: Sequence[int]
    """Tokens new since its parent: [T_new]. All token fields are empty for a reply in text, and
    tuples but where many calls are kept: there they are arrays."""
    completion_ids: Sequence[int]
    """Sampled tokens, the stop token included: [T_out]."""
    logprobs: Sequence[float]
    """Log-probability of each sampled token as served: [T_out]."""
    spans: tuple[VersionSpan, ...]
    """Policy versions over the completion, contiguous from 0 to T_out."""
    text: str
    """For people and for the action parser; never tokenised again."""
    finish_reason: str
    """"stop" or "length"; an endpoint that takes text may send others."""
    latency_s: float = 0.0
    num_prompt_tokens: int | None = None
    """Tokens of the whole prompt, as counted by an endpoint that gives text and no tokens."""
    num_completion_tokens: int | None = None
    """Tokens of the reply, likewise."""
    parts: Reply | None = None
    """Text, reasoning and tool calls apart, as an endpoint gave them to a program, or as the agent
    reads them that offered tools; None: they are read from `text`."""
    rewritten: ModelRequest | None = None
    """The agent's request, where its context was rewritten for it; None: it follows from the record
    of the rollout."""
    is_summary: bool = False
    """It sums up the turns before it, which `rewritten` asked for. It asks for no command, and the
    agent never sees it."""
    engine: str = field(default="", compare=False)
    """Name of the engine that gave its last token, and that has its keys and values; empty: not
    known. Which one it was depends on time: calls are equal without it."""

    @property
    def reply(self) -> Reply:
        """As an agent reads it: in parts where it has them, else as one text."""
        return self.parts or Reply(text=self.text)

    @property
    def end(self) -> int:
        return self.prompt_start + len(self.prompt_ids) + len(self.completion_ids)

    @property
    def versions(self) -> list[int]:
        """Policy versions that its tokens were sampled under, oldest first."""
        return sorted({span.version for span in self.spans})


@dataclass(frozen=True, slots=True)
class PartialCall:
    """The first tokens of a reply: what is continued when its engine or its process dies."""

    completion_ids: tuple[int, ...]
    """[T]; none of them ends the reply."""
    logprobs: tuple[float, ...]
    """[T] as served."""
    spans: tuple[VersionSpan, ...]
    latency_s: float


@dataclass(frozen=True, slots=True)
class ReplyPart:
    """Tokens of a reply under way, new since the part before it. A part that starts at 0 begins
    the reply anew: what was kept before it may be of another sampling."""

    start: int
    """Position in the reply of its first token."""
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    spans: tuple[VersionSpan, ...]
    """Positions in the reply, contiguous from `start` to `end`."""
    latency_s: float
    """Seconds that the whole reply took so far."""

    @property
    def end(self) -> int:
        return self.start + len(self.completion_ids)

    @classmethod
    def of_call(cls, call: PartialCall, start: int = 0) -> "ReplyPart":
        """The tokens of `call` from `start` on."""
        spans = [
            VersionSpan(span.version, max(span.start, start), span.end)
            for span in call.spans
            if span.end > start
        ]
        return cls(
            start, call.completion_ids[start:], call.logprobs[start:], tuple(spans), call.latency_s
        )


def join_parts(parts: Sequence[ReplyPart]) -> ReplyPart:
    """Parts that follow one another, as one."""
    for before, part in pairwise(parts):
        assert before.end == part.start, f"a part from {part.start} after one to {before.end}"
    return ReplyPart(
        parts[0].start,
        tuple(chain.from_iterable(part.completion_ids for part in parts)),
        tuple(chain.from_iterable(part.logprobs for part in parts)),
        _joined(chain.from_iterable(part.spans for part in parts)),
        parts[-1].latency_s,
    )


def begun_by(parts: Iterable[ReplyPart]) -> PartialCall | None:
    """The beginning of a reply from its parts in order, up to the first that is missing; None:
    none begins at 0."""
    following: list[ReplyPart] = []
    for part in parts:
        if part.start != (following[-1].end if following else 0):
            break
        following.append(part)
    if not following:
        return None
    whole = join_parts(following)
    return PartialCall(whole.completion_ids, whole.logprobs, whole.spans, whole.latency_s)


def _joined(spans: Iterable[VersionSpan]) -> tuple[VersionSpan, ...]:
    joined: list[VersionSpan] = []
    for span in spans:
        if joined and joined[-1].version == span.version:
            joined[-1] = VersionSpan(span.version, joined[-1].start, span.end)
        else:
            joined.append(span)
    return tuple(joined)


@dataclass(frozen=True, slots=True)
class Execution:
    """One command and what it did."""

    call: int
    """The call that asked for it."""
    index: int
    """Its place among the commands of that call, from 0."""
    command: str
    returncode: int
    """The shell's exit code; -1 when the command was killed at its timeout."""
    output: bytes
    """stdout and stderr interleaved, cut to the sandbox's cap."""
    truncated: bool
    """More was written than the cap keeps."""
    timed_out: bool
    wall_s: float
    reward: float | None = None
    """Reward of this command alone; None: its environment gives none."""
    is_over: bool = False
    """Its world ended with it."""


def by_call(executions: Iterable[Execution]) -> defaultdict[int, list[Execution]]:
    """Executions of each call's commands, in the order given; an empty list for other calls."""
    ran: defaultdict[int, list[Execution]] = defaultdict(list)
    for execution in executions:
        ran[execution.call].append(execution)
    return ran
