"""Tokens of a rollout's turns, each with its text and how sure the policy was of it.

Token ids, log-probs and versions are those that are stored. Texts come from the tokenizer in the
policy's folder; where that folder is gone, the ids stand in their place. Imported by `rollout`.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from pathlib import Path
from typing import Any

from infra.db.database import Database
from infra.db.fence import UnknownId
from infra.db.reading import rollout_rail
from infra.db.rollouts import turns
from infra.db.rollouts.rollouts import RolloutRecord
from infra.db.training import policies
from mainspring.errors import UsageError
from mainspring.trajectories.turns import Call
from reports.one_rollout import CallRange

WAYS = ("log-prob", "probability", "version", "trained")
MAX_TOKENS = 1_500
"""Tokens of one turn on a page: its newest ones of the prompt, and the first ones of the reply."""
NUM_SHADES = 6
WORST = 20
_KEPT: OrderedDict[str, Any] = OrderedDict()
_MAX_KEPT = 4
"""Tokenizers in memory: some have 20 MB."""


@dataclass(frozen=True, slots=True)
class Colouring:
    by: str
    ways: Sequence[str]
    scale: Sequence[tuple[str, str]]
    """Class and words of each shade."""
    note: str
    """Why the texts are missing; empty: they are not."""
    worst: Sequence[tuple[int, int, str, float]]
    """Turn, place, text and log-prob of the least likely tokens of these turns."""


@dataclass(frozen=True, slots=True)
class Token:
    id: int
    text: str
    shade: str
    """Class of its colour."""
    logprob: float | None
    """None: the policy did not sample it."""
    version: int | None


@dataclass(frozen=True, slots=True)
class TurnTokens:
    turn: int
    tokens: Sequence[Token]
    num_left_out: int
    is_trained: bool
    """A step trains on the turn."""
    text: str
    """Reply of a turn that came without tokens."""


async def tokens_of(
    db: Database, record: RolloutRecord, epoch: int, shown: CallRange, by: str, version: int
) -> tuple[Sequence[TurnTokens], Colouring]:
    """`by`: one of WAYS, empty for the first. Raises UsageError."""
    by = by or WAYS[0]
    if by not in WAYS:
        raise UsageError(f"tokens cannot be coloured by {by!r}", remedy=f"by {', '.join(WAYS)}")
    calls, _ = await turns.history(db, record.id, epoch, shown.first, shown.last)
    versions = sorted({each for call in calls for each in call.versions})
    decoder, note = await _decoder(db, record, versions[0] if versions else version)
    untrained = await _untrained(db, record, epoch)
    shown_turns = []
    worst: list[tuple[int, int, str, float]] = []
    for call in calls:
        is_trained = untrained is not None and call.number not in untrained
        tokens = _tokens(call, by, versions, decoder, is_trained)
        worst += [
            (call.number + 1, place, token.text, token.logprob)
            for place, token in enumerate(tokens)
            if token.logprob is not None
        ]
        shown_turns.append(
            TurnTokens(
                call.number + 1,
                tokens[:MAX_TOKENS],
                max(0, len(tokens) - MAX_TOKENS),
                is_trained,
                "" if tokens else call.text,
            )
        )
    worst.sort(key=lambda each: each[3])
    return shown_turns, Colouring(by, WAYS, _scale(by, versions), note, worst[:WORST])


async def _untrained(db: Database, record: RolloutRecord, epoch: int) -> frozenset[int] | None:
    """Numbers of the calls that its step does not train on; None where it is in no step."""
    if record.reward is None or epoch != record.epoch:
        return None
    async with db.snapshot() as connection:
        if await rollout_rail.step_of(connection, record.group) is None:
            return None
        return await rollout_rail.untrained(connection, record.id, epoch)


def _tokens(
    call: Call, by: str, versions: Sequence[int], decoder: Any, is_trained: bool
) -> list[Token]:
    ids = [*call.prompt_ids, *call.completion_ids]
    texts = _texts(decoder, ids)
    num_prompt = len(call.prompt_ids)
    of_token: dict[int, int] = {}
    for span in call.spans:
        of_token.update(dict.fromkeys(range(span.start, span.end), span.version))
    made = []
    for place, (number, text) in enumerate(zip(ids, texts, strict=True)):
        if place < num_prompt:
            made.append(Token(number, text, "context", None, None))
            continue
        logprob, version = call.logprobs[place - num_prompt], of_token.get(place - num_prompt)
        shade = _shade(by, logprob, version, versions, is_trained)
        made.append(Token(number, text, shade, logprob, version))
    # Of a long prompt the end is what the reply follows.
    return made[max(0, num_prompt - MAX_TOKENS // 2) :]


def _shade(
    by: str, logprob: float, version: int | None, versions: Sequence[int], is_trained: bool
) -> str:
    if by == "version":
        return f"v{versions.index(version) % NUM_SHADES}" if version in versions else "context"
    if by == "trained":
        return "trained" if is_trained else "masked"
    if by == "probability":
        return f"p{min(NUM_SHADES - 1, int((1 - exp(min(logprob, 0.0))) * NUM_SHADES))}"
    bounds = (-0.02, -0.2, -0.7, -1.6, -3.0)
    return f"p{sum(logprob < bound for bound in bounds)}"


def _scale(by: str, versions: Sequence[int]) -> list[tuple[str, str]]:
    if by == "version":
        shades = [(f"v{n % NUM_SHADES}", f"version {each}") for n, each in enumerate(versions)]
    elif by == "trained":
        shades = [("trained", "trained"), ("masked", "not trained")]
    elif by == "probability":
        shades = [
            (f"p{n}", f"{100 - 100 * (n + 1) // NUM_SHADES} to {100 - 100 * n // NUM_SHADES} %")
            for n in range(NUM_SHADES)
        ]
    else:
        words = ("above -0.02", "to -0.2", "to -0.7", "to -1.6", "to -3", "below -3")
        shades = [(f"p{n}", word) for n, word in enumerate(words)]
    return [*shades, ("context", "prompt, not sampled")]


def _texts(decoder: Any, ids: Sequence[int]) -> list[str]:
    if decoder is None:
        return [f"{number} " for number in ids]
    from tokenizers.decoders import DecodeStream

    stream = DecodeStream(skip_special_tokens=False)
    # A character of several tokens stands with the last of them.
    return [stream.step(decoder, number) or "" for number in ids]


async def _decoder(db: Database, record: RolloutRecord, version: int) -> tuple[Any, str]:
    """The tokenizer of the policy's folder; None with the reason where there is none."""
    try:
        policy = await policies.get_policy(db, record.campaign, version)
    except UnknownId:
        return None, "no policy of this run is stored: token ids stand in the place of texts"
    path = Path(policy.path) / "tokenizer.json"
    key = str(path)
    if key in _KEPT:
        _KEPT.move_to_end(key)
        return _KEPT[key], ""
    from tokenizers import Tokenizer

    try:
        _KEPT[key] = Tokenizer.from_file(key)
    except Exception as error:  # the library raises no class of its own
        reason = " ".join(str(error).split())[:120]
        return None, f"{path} cannot be read ({reason}): token ids stand in the place of texts"
    while len(_KEPT) > _MAX_KEPT:
        _KEPT.popitem(last=False)
    return _KEPT[key], ""
