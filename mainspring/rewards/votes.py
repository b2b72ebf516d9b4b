"""Votes of judges: a number read from a reply, and a score made of several. Pure.

Invariants: a vote is read strictly, and what cannot be read is an invalid vote, never a 0 among the
valid ones; a judgement that lacks votes because its judge could not be asked is missing, and no
number. Imported by the activities that ask and that score.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mainspring.config.agents.judges import JudgeConfig, QuestionScope, VoteForm
from mainspring.words.causes import shortened
from mainspring.words.plain_text import plain

NUM_RECENT = 20
"""Judgements whose votes cannot be read, after which people are told."""
EXAMPLE_CHARS = 200
READ_CHARS = 200_000
"""Characters read of a reply, from its end."""
MAX_OBJECTS = 1000
"""Braces that a JSON object is looked for at."""
_BOXED = re.compile(r"\\boxed\{\s*([+-]?1)\s*\}")
_LAST_LINE = re.compile(r"(?:[^:]*:)?[\s*_`]*([+-]?\d{1,15}(?:\.\d{1,15})?)[\s*_`]*\.?")


@dataclass(frozen=True, slots=True)
class Vote:
    text: str
    value: float | None
    """None: it could not be read."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """One question to a judge, settled."""

    judge: str
    of: QuestionScope
    call: int
    """Number of the call that is judged; 0 of a rollout; of a reward function, the question's."""
    score: float | None
    """None: missing."""
    num_votes: int
    num_valid: int
    missing: str | None = None
    """Why votes are missing."""


@dataclass(frozen=True, slots=True)
class RecentJudgements:
    """The newest judgements of one judge in one campaign, newest first."""

    judge: str
    judgements: tuple[Judgement, ...]
    example: str | None
    """The reply of its newest vote."""


def vote_of(judge: JudgeConfig, reply: str) -> float | None:
    """The number that a reply gives; None: it cannot be read."""
    text = reply[-READ_CHARS:]
    match judge.vote:
        case VoteForm.BOXED:
            boxed = _BOXED.search(text)
            return None if boxed is None else float(boxed[1])
        case VoteForm.NUMBER:
            lines = text.strip().splitlines()
            found = _LAST_LINE.fullmatch(lines[-1].strip()) if lines else None
            return None if found is None else _bounded(judge, float(found[1]))
        case VoteForm.JSON:
            return _bounded(judge, _in_json(text, judge.field or ""))


def score_of(votes: Sequence[Vote], wanted: int) -> float | None:
    """The mean of the valid votes; 0 when all votes were given and none is valid. None: some were
    not given, and none is valid."""
    valid = [vote.value for vote in votes if vote.value is not None]
    if valid:
        return math.fsum(valid) / len(valid)
    return 0.0 if len(votes) >= wanted else None


def values_of(judgements: Sequence[Judgement]) -> Mapping[tuple[str, QuestionScope], float | None]:
    """The value of each judge's part of the reward: the mean over its judgements, without those
    that are missing. None: all of them are."""
    by_part: dict[tuple[str, QuestionScope], list[float]] = {}
    for judgement in judgements:
        scores = by_part.setdefault((judgement.judge, judgement.of), [])
        if judgement.score is not None:
            scores.append(judgement.score)
    return {
        part: math.fsum(scores) / len(scores) if scores else None
        for part, scores in by_part.items()
    }


def warnings_of(recent: RecentJudgements, num_enough: int = NUM_RECENT) -> Iterator[str]:
    """Sentences for people: votes that are never read, and judgements that are missing.
    `num_enough`: judgements without a vote that can be read before it is told."""
    judge, found = recent.judge, recent.judgements
    given = [judgement for judgement in found if judgement.num_votes]
    if len(given) >= num_enough and not any(judgement.num_valid for judgement in given):
        example = shortened(" ".join(plain(recent.example or "").split()), EXAMPLE_CHARS)
        yield (
            f"judge {judge}: no vote of its newest {len(given)} judgements can be read: correct "
            f"judges.{judge}.vote, or tell the form in its prompt; it wrote: "
            f"{example or '(nothing)'}"
        )
    missing = [judgement for judgement in found if judgement.score is None]
    if missing:
        yield (
            f"judge {judge}: {len(missing)} of its newest {len(found)} judgements are missing: "
            f"{missing[0].missing}"
        )


def _bounded(judge: JudgeConfig, number: float | None) -> float | None:
    if number is None or not math.isfinite(number):
        return None
    if judge.low is not None and judge.high is not None and not judge.low <= number <= judge.high:
        return None
    return number


def _in_json(text: str, field: str) -> float | None:
    """The number of the last object that has the field. Objects inside another one are part of
    it."""
    decoder = json.JSONDecoder()
    found: float | None = None
    place = text.find("{")
    for _ in range(MAX_OBJECTS):
        if place < 0:
            break
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            end = place + 1
        else:
            if field in value:
                number = value[field]
                is_number = isinstance(number, int | float) and not isinstance(number, bool)
                found = _as_float(number) if is_number else None
        place = text.find("{", end)
    return found


def _as_float(number: int | float) -> float | None:
    try:
        return float(number)
    except OverflowError:
        return None
