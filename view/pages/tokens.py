"""Tokens of a rollout's turns, each with its text, how sure the policy was of it, and what its step
did with it.

Token ids, log-probs and versions are those that are stored; advantage and gap are stored with the
step. Texts come from the tokenizer in the policy's folder; where that folder is gone, the ids stand
in their place. Imported by `rollout`.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path
from typing import Any

from infra.db.database import Database
from infra.db.fence import UnknownId
from infra.db.reading import rollout_rail
from infra.db.rollouts import turns
from infra.db.rollouts.rollouts import RolloutRecord
from infra.db.runs import campaigns
from infra.db.training import policies, step_details
from infra.db.training.step_details import StepOfRollout
from mainspring.config.campaign import CampaignConfig
from mainspring.errors import UsageError
from mainspring.training.trained_rollouts import KeptCall, StoredGap
from mainspring.trajectories.turns import Call
from mainspring.words.ends import UNTRAINED
from reports.one_rollout import CallRange
from view.pages.token_shades import WAYS, Sampled, scale, shade

MAX_TOKENS = 1_500
"""Tokens of one turn on a page: its newest ones of the prompt, and the first ones of the reply."""
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
    about_step: str
    """Why the step tells less than it could, or has trained no token; empty: nothing to tell."""
    gaps: Sequence[StoredGap]
    """Tokens of the rollout that are among the largest gaps of its step."""


@dataclass(frozen=True, slots=True)
class Token:
    id: int
    text: str
    shade: str
    """Class of its colour."""
    logprob: float | None
    """None: the policy did not sample it."""
    version: int | None
    place: int | None = None
    """Its place in the reply, from 0, where its gap is among the largest of the step."""
    is_trained: bool = False
    advantage: float | None = None
    recomputed: float | None = None
    gap: float | None = None
    entropy: float | None = None


@dataclass(frozen=True, slots=True)
class TurnTokens:
    turn: int
    tokens: Sequence[Token]
    num_left_out: int
    is_trained: bool
    """A step trains on a token of it."""
    why_not: str
    """Why no step does; empty: one does."""
    text: str
    """Reply of a turn that came without tokens."""


@dataclass(frozen=True, slots=True)
class _Training:
    """Facts of the step about the calls of a rollout."""

    details: StepOfRollout | None
    """None: there is no step, or it is one of an earlier release."""
    is_in_step: bool
    untrained: frozenset[int]
    """Calls that are context only."""
    stale_before: int
    """Tokens of older versions are context."""
    kept: Mapping[int, KeptCall]
    """Numbers of all tokens by call, where the campaign keeps them."""

    def why_not(self, call: Call) -> str:
        if not self.is_in_step:
            return "in no step"
        if self.details is not None and (why := self.details.trained.masked_why) is not None:
            return f"not trained: {UNTRAINED[why]}"
        if call.number in self.untrained:
            return "not trained: context of other turns"
        if call.versions and max(call.versions) < self.stale_before:
            return "not trained: its tokens are too old"
        return ""

    def advantage(self, call: int) -> float | None:
        if self.details is None:
            return None
        trained = self.details.trained
        by_call = trained.call_advantages
        return trained.advantage if by_call is None else by_call.get(call)

    def gaps(self, call: int) -> Mapping[int, StoredGap]:
        gaps = () if self.details is None else self.details.gaps
        return {gap.offset: gap for gap in gaps if gap.call == call}


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
    training = await _training(db, record, epoch, shown)
    shown_turns = []
    worst: list[tuple[int, int, str, float]] = []
    for call in calls:
        why_not = training.why_not(call)
        tokens = _tokens(call, by, versions, decoder, training)
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
                not why_not,
                why_not,
                "" if tokens else call.text,
            )
        )
    worst.sort(key=lambda each: each[3])
    gaps = () if training.details is None else training.details.gaps
    return shown_turns, Colouring(
        by, WAYS, scale(by, versions), note, worst[:WORST], _about(training, by), gaps
    )


def _about(training: _Training, by: str) -> str:
    details = training.details
    if details is None:
        if by not in ("advantage", "gap", "entropy"):
            return ""
        if training.is_in_step:
            return "its step is not done yet, or an earlier release trained it: nothing is stored"
        return "no step has it in its batch: nothing was computed of it"
    if by == "advantage" and details.trained.is_mean and not details.trained.call_advantages:
        return "its tokens have different advantages, given by a critic; their mean is shown"
    if by == "entropy" and not training.kept:
        return "entropies are stored where a campaign has trainer.keep_recomputed = true"
    if by == "gap" and not details.gaps and not training.kept:
        return "none of its tokens is among the largest gaps of its step"
    return ""


async def _training(db: Database, record: RolloutRecord, epoch: int, shown: CallRange) -> _Training:
    """Earlier epochs are trained by no step."""
    nothing = _Training(None, False, frozenset(), 0, {})
    if epoch != record.epoch:
        return nothing
    async with db.snapshot() as connection:
        step = await rollout_rail.step_of(connection, record.group)
        if step is None:
            return nothing
        untrained = await rollout_rail.untrained(connection, record.id, epoch)
        details = await step_details.of_rollout(connection, record.id)
        kept = {}
        if details is not None:
            kept = await step_details.kept_of(connection, details, shown.first, shown.last)
    if record.reward is None and details is None:
        return nothing
    config = (await campaigns.get(db, record.campaign)).at(step)
    bound = config.trainer.max_token_staleness if isinstance(config, CampaignConfig) else None
    stale_before = 0 if bound is None else step - 1 - bound
    return _Training(details, True, untrained, stale_before, kept)


def _tokens(
    call: Call, by: str, versions: Sequence[int], decoder: Any, training: _Training
) -> list[Token]:
    ids = [*call.prompt_ids, *call.completion_ids]
    texts = _texts(decoder, ids)
    num_prompt = len(call.prompt_ids)
    of_token: dict[int, int] = {}
    for span in call.spans:
        of_token.update(dict.fromkeys(range(span.start, span.end), span.version))
    is_trained = not training.why_not(call)
    advantage, gaps = training.advantage(call.number), training.gaps(call.number)
    kept = training.kept.get(call.number)
    made = []
    for place, (number, text) in enumerate(zip(ids, texts, strict=True)):
        if place < num_prompt:
            made.append(Token(number, text, "context", None, None))
            continue
        offset = place - num_prompt
        version, gap = of_token.get(offset), gaps.get(offset)
        recomputed = _number(None if kept is None else kept.logprobs, offset)
        sampled = Sampled(
            logprob=call.logprobs[offset],
            version=version,
            is_trained=is_trained and (version is None or version >= training.stale_before),
            advantage=advantage,
            recomputed=recomputed if gap is None else gap.recomputed,
            has_gap=gap is not None or recomputed is not None,
            entropy=_number(None if kept is None else kept.entropies, offset),
        )
        made.append(
            Token(
                number,
                text,
                shade(by, sampled, versions),
                sampled.logprob,
                version,
                None if gap is None else offset,
                sampled.is_trained,
                advantage if sampled.is_trained else None,
                sampled.recomputed,
                sampled.gap,
                sampled.entropy,
            )
        )
    # Of a long prompt the end is what the reply follows.
    return made[max(0, num_prompt - MAX_TOKENS // 2) :]


def _number(values: Any, offset: int) -> float | None:
    """A number of a kept array; None where there is none."""
    number = nan if values is None or offset >= len(values) else float(values[offset])
    return number if isfinite(number) else None


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
