"""Turns as recorded: what went to the policy token by token, what came back, what the command did.

Invariant 4 lives here: tokens are stored as served and never re-derived. Turn t stores only the
tokens new since turn t-1, so a rollout's sequence is the concatenation over turns of
`prompt_ids` + `completion_ids`, and `check_contiguous` proves that nothing is missing or doubled.
"""

from dataclasses import dataclass

from mainspring.errors import MainspringError
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
class Generation:
    """One reply of the policy, exactly as served."""

    turn: int
    prompt_start: int
    """Position in the rollout's sequence where `prompt_ids` begins."""
    prompt_ids: tuple[int, ...]
    """Tokens new since the last reply: [T_new]. All token fields are empty for a reply in text."""
    completion_ids: tuple[int, ...]
    """Sampled tokens, the stop token included: [T_out]."""
    logprobs: tuple[float, ...]
    """Log-probability of each sampled token as served: [T_out]."""
    spans: tuple[VersionSpan, ...]
    """Policy versions over the completion, contiguous from 0 to T_out."""
    text: str
    """For people and for the action parser; never tokenised again."""
    finish_reason: str
    """"stop" or "length"; an endpoint that takes text may send others."""
    latency_s: float = 0.0
    num_prompt_tokens: int | None = None
    """Of the whole prompt, as counted by an endpoint that gives text and no tokens."""
    num_completion_tokens: int | None = None
    """Of the reply, likewise."""

    @property
    def end(self) -> int:
        return self.prompt_start + len(self.prompt_ids) + len(self.completion_ids)


@dataclass(frozen=True, slots=True)
class Execution:
    """One command and what it did."""

    turn: int
    command: str
    returncode: int
    """The shell's exit code; -1 when the command was killed at its timeout."""
    output: bytes
    """stdout and stderr interleaved, cut to the sandbox's cap."""
    truncated: bool
    """More was written than the cap keeps."""
    timed_out: bool
    wall_s: float


def check_contiguous(rollout: str, generations: list[Generation]) -> None:
    """Raises BrokenTrajectory naming the rollout and turn where the sequence breaks."""
    position = 0
    for index, generation in enumerate(generations):
        where = f"rollout {rollout}, turn {generation.turn}"
        if generation.turn != index:
            raise BrokenTrajectory(f"{where}: expected turn {index}")
        if generation.prompt_start != position:
            raise BrokenTrajectory(
                f"{where}: starts at token {generation.prompt_start}, expected {position}"
            )
        if len(generation.logprobs) != len(generation.completion_ids):
            raise BrokenTrajectory(f"{where}: log-probs and tokens differ in number")
        covered = 0
        for span in generation.spans:
            if span.start != covered or span.end < span.start:
                raise BrokenTrajectory(f"{where}: version spans are not contiguous")
            covered = span.end
        if covered != len(generation.completion_ids):
            raise BrokenTrajectory(f"{where}: version spans end at {covered}")
        position = generation.end
