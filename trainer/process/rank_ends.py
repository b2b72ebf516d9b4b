"""How the calls of one driver to its ranks ended, and which of several failures is the cause.

Invariants: what is told is one line that begins with the rank and the error's own class and
message; the traceback stands in the rank's log, which is named. A rank whose peer failed fails
too, in its collective, and may be heard first: it is never told as the cause while another is
known. Used by the driver alone.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import (
    GetTimeoutError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
)

from mainspring.errors import MainspringError
from mainspring.training.training_faults import RankFailed, RankOutOfMemory, TrainerLost
from mainspring.words.causes import (
    cause_of,
    innermost,
    is_of_a_peer,
    is_out_of_memory,
    memory_kills,
    shortened,
)
from mainspring.words.plain_text import plain
from trainer.process.rank_log import last_words, rank_log

WORDS_CHARS = 120
"""Length of the end of a rank's log, where that is all there is to tell: a screen keeps 300
characters of a failure, and the log's path is among them."""
RAY_CHARS = 300
_MEMORY = (
    "lower trainer.micro_batch_tokens, or give the ranks more memory: `mainspring campaign plan "
    "FILE` tells what they need"
)
_AGAIN = "the ranks are started again and resume from the newest checkpoint"
_OF_RAY = re.compile(r"(?:The actor died|Worker unexpectedly exits|The actor is dead)[^.]*\.")
_KILLED = re.compile(r"connection error code \d+\. End of file", re.IGNORECASE)
"""Ray's words for a process that closed its connection without a goodbye: it was given no time."""


@dataclass(frozen=True, slots=True)
class RankEnds:
    raised: dict[int, BaseException]
    """By rank, what its call raised there."""
    died: dict[int, RayError]
    """By rank, what Ray tells of its end."""

    def domain_error(self) -> MainspringError | None:
        if self.died:
            return None
        domain_errors = [
            error for error in self.raised.values() if isinstance(error, MainspringError)
        ]
        return domain_errors[0] if domain_errors else None

    def told(self, logs: Path | None, memory_kills_before: int | None) -> TrainerLost:
        """`logs`: the ranks' folder; `memory_kills_before`: when they were started."""
        if self.died:
            return self._of_death(logs, memory_kills_before)
        rank, error = min(self.raised.items(), key=lambda item: _rank_of_cause(item[1]))
        what = f"rank {rank} of the trainer failed: {cause_of(error)}"
        place = f"its log has the whole error: {rank_log(logs, rank)}" if logs else ""
        if is_out_of_memory(error):
            return RankOutOfMemory(f"out of memory: {what}", remedy=_joined(_MEMORY, place))
        return RankFailed(what, remedy=_joined(place, "correct what it names, or report it"))

    def _of_death(self, logs: Path | None, memory_kills_before: int | None) -> TrainerLost:
        rank, error = next(iter(self.died.items()))
        log = rank_log(logs, rank) if logs else None
        words = shortened(last_words(log), WORDS_CHARS) if log else ""
        end = f"; its log: {log}" if log else ""
        if words:
            end += f", which ends with: {words}"
        # What it raised before it died is the cause of its death.
        for index, raised in self.raised.items():
            if is_out_of_memory(raised):
                rank, error = index, raised
        kills = memory_kills()
        is_short = None not in (kills, memory_kills_before) and kills != memory_kills_before
        if is_short or is_out_of_memory(error) or isinstance(error, OutOfMemoryError):
            what = (
                f"out of memory: the kernel ended rank {rank} of the trainer, or another process "
                "of its control group"
                if is_short
                else f"out of memory: rank {rank} of the trainer: {_of_ray(error)}"
            )
            return RankOutOfMemory(what + end, remedy=_joined(_MEMORY, _AGAIN))
        if _KILLED.search(str(error)):
            counted = ", and the kernel counts no lack of memory" if kills is not None else ""
            what = f"was killed (SIGKILL) or crashed: it ended without an error of its own{counted}"
        else:
            what = f"was lost: {_of_ray(error)}"
        return TrainerLost(f"rank {rank} of the trainer {what}{end}", remedy=_AGAIN)


def look(calls: list[Any], timeout_s: float) -> RankEnds:
    """Once one call failed: how each ended, of those that end within `timeout_s`."""
    ray.wait(calls, num_returns=len(calls), timeout=timeout_s)
    raised: dict[int, BaseException] = {}
    died: dict[int, RayError] = {}
    for rank, call in enumerate(calls):
        try:
            ray.get(call, timeout=0)
        except GetTimeoutError:
            continue
        except RayTaskError as error:
            raised[rank] = innermost(error)
        except RayError as error:
            died[rank] = error
    return RankEnds(raised, died)


def _rank_of_cause(error: BaseException) -> int:
    """The lowest is most likely the cause."""
    if is_out_of_memory(error):
        return 0
    return 2 if is_of_a_peer(error) else 1


def _of_ray(error: BaseException) -> str:
    """The sentence about the end; Ray's list of ids, addresses and guesses is left out."""
    if not isinstance(error, RayActorError):
        return cause_of(error)
    text = " ".join(plain(str(error)).split())
    return shortened(" ".join(_OF_RAY.findall(text)) or text, RAY_CHARS)


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
