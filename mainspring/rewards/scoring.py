"""Rewards: what a rollout is worth, added up from the parts that its campaign names. Pure.

A part is a function `(outcome, **options) -> float`: one of PARTS, or a function of your own as
"package.module:function". Invariant 5: what the agent did not do is never scored; a masked end has
no reward whatever the parts would give. A part that raises or returns anything but a finite number
raises RewardBroken: it is neither a zero nor a masked rollout. Imported by activities and commands.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from numbers import Real
from typing import Any, Protocol

from mainspring.config.agents.judges import JudgeScope
from mainspring.config.registry import Registry
from mainspring.config.reward import JUDGE, SCORE, STEPS, RewardPart
from mainspring.config.run import RunConfig
from mainspring.errors import ConfigError, ServiceError, WorkFailed
from mainspring.rewards.seen import SeenRecord
from mainspring.status import FaultKind, StopReason, Verdict, is_masked
from mainspring.tasks.criterion import HANDED_IN, GradeReport
from mainspring.trajectories.turn_rewards import TurnRewards

_CORRECT = "correct the function on every rollout worker, then start the campaign again"


class RewardBroken(WorkFailed):
    """A reward part raised, or returned what is no reward: the campaign cannot continue with it."""

    fault = FaultKind.REWARD_BROKEN


@dataclass(frozen=True, slots=True)
class Outcome:
    """A rollout that ended, as far as its reward may depend on it."""

    rollout: str
    task: str
    stop_reason: StopReason
    verdict: Verdict | None
    report: GradeReport | None
    num_turns: int
    step_limit: int
    num_format_errors: int
    """Replies without exactly one bash block."""
    num_completion_tokens: int | None
    """Sampled by the policy, over all turns; None: its endpoint did not count them."""
    num_tokens: int | None
    """Prompts, observations and replies: what `max_context` bounds; None likewise."""
    max_context: int
    replies: tuple[str, ...] = ()
    """Replies that the policy wrote, turn by turn."""
    patch: bytes = b""
    judged: Mapping[tuple[str, JudgeScope], float | None] = field(default_factory=dict)
    """Value of each judge by what it judged; None: all its judgements are missing."""
    judged_turns: Mapping[str, Mapping[int, float | None]] = field(default_factory=dict)
    """Score of each turn by judge and call; None: it is missing."""
    step_rewards: Mapping[int, float] = field(default_factory=dict)
    """Rewards that the environment gave with single steps, added up by call."""
    record: SeenRecord | None = None
    """The issue and all turns with their commands and outputs, for functions of your own."""

    @property
    def is_masked(self) -> bool:
        """Whether the agent cannot be scored: it was stopped, or something else failed."""
        return is_masked(self.stop_reason, self.verdict)


Part = Callable[..., Any]
Calls = Callable[[Part, Outcome, Mapping[str, Any]], object]
"""Gives a part's value; it awaits what has to be."""


class RewardJudges(Protocol):
    """Judges of the campaign, for an async function with a parameter `judges`."""

    async def ask(self, judge: str, prompt: str) -> float | None:
        """Score by the judge of the section [judges.NAME], from its votes; None: it is missing.
        Each vote is stored; a function that is called again gets the same answers, if it asks in
        the same order."""
        ...


def _plainly(part: Part, outcome: Outcome, arguments: Mapping[str, Any]) -> object:
    return part(outcome, **arguments)


@dataclass(frozen=True, slots=True)
class Scored:
    reward: float | None
    """None: masked."""
    parts: dict[str, float | None] = field(default_factory=dict)
    """Value of each part, before its weight; None: it could not be measured, nor counted."""
    turns: TurnRewards | None = None
    """Rewards of its turns; None: no part of the reward is given to turns."""


def _outcome(outcome: Outcome, *, passed: float = 1.0, failed: float = 0.0) -> float:
    """`passed` when the task is resolved, else `failed`; -1 for the +1/-1 of some recipes."""
    return passed if outcome.verdict is Verdict.RESOLVED else failed


def _tests_passed(outcome: Outcome) -> float:
    """Share of the tests to fix that pass, 0 as soon as one that passed before is broken; a reward
    file's score, held to 0..1. Where no single test is known: 1 when resolved, else 0."""
    share = None if outcome.report is None else outcome.report.tests_passed
    if share is None:
        return float(outcome.verdict is Verdict.RESOLVED)
    return min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0


def _score(outcome: Outcome) -> float:
    """The number that judged the rollout, as it is. Without one: 1 when resolved, else 0."""
    number = None if outcome.report is None else outcome.report.score
    return float(outcome.verdict is Verdict.RESOLVED) if number is None else number


def _length(
    outcome: Outcome, *, free_tokens: float | None = None, free_turns: float | None = None
) -> float | None:
    """0 up to `free_tokens` (of `policy.max_context`) or `free_turns` (of `agent.step_limit`), from
    there linearly to -1 at the limit: -(used - free) / (limit - free). With both, the worse counts.
    A number of tokens that is not known does not count; None when nothing is left.

    Source: DAPO's soft overlong punishment, arXiv 2503.14476, equation 13.
    """
    penalties = [
        min(max((used - free) / (limit - free), 0.0), 1.0)
        for used, free, limit in (
            (outcome.num_tokens, free_tokens, outcome.max_context),
            (outcome.num_turns, free_turns, outcome.step_limit),
        )
        if free is not None and used is not None
    ]
    return -max(penalties) if penalties else None


def _format(outcome: Outcome) -> float:
    """Share of the replies that hold exactly one bash block; 1 when there are none."""
    num_replies = len(outcome.replies)
    return 1.0 - outcome.num_format_errors / num_replies if num_replies else 1.0


def _judge(outcome: Outcome, *, judge: str, of: JudgeScope) -> float | None:
    """Mean of a judge's judgements without the missing ones; None when all are missing."""
    return outcome.judged.get((judge, of))


def _steps(outcome: Outcome) -> float:
    """Sum of the rewards that the environment gave with single steps; 0 where it gave none."""
    return math.fsum(outcome.step_rewards.values())


PARTS: Registry[Part] = Registry(
    "reward part",
    (
        ("outcome", _outcome),
        (SCORE, _score),
        ("tests_passed", _tests_passed),
        ("length", _length),
        ("format", _format),
        (JUDGE, _judge),
        (STEPS, _steps),
    ),
    takes="outcome, **options",
    may_await=True,
)


def score(parts: tuple[RewardPart, ...], outcome: Outcome, call: Calls = _plainly) -> Scored:
    """The weighted sum of the parts; a reward that an agent outside handed in stands as it is.
    Raises RewardBroken, and what its judges raise."""
    if outcome.is_masked:
        return Scored(None)
    report = outcome.report
    if report is not None and report.judge == HANDED_IN and report.score is not None:
        return Scored(report.score, {HANDED_IN: report.score})
    values = {part.label: _value(part, outcome, call) for part in parts}
    counted = [part.weight * value for part in parts if (value := values[part.label]) is not None]
    whose = f"the reward of rollout {outcome.rollout}"
    if not counted:
        raise RewardBroken(
            f"{whose} has no part that could be measured: its endpoint counts no tokens, or no "
            "judgement of it is stored",
            remedy='add a part that needs none, such as "outcome"',
        )
    reward = _finite(sum(counted), whose)
    return Scored(reward, values, _of_turns(parts, outcome, values, reward))


def _of_turns(
    parts: tuple[RewardPart, ...],
    outcome: Outcome,
    values: Mapping[str, float | None],
    reward: float,
) -> TurnRewards | None:
    """The reward taken apart; None where no part of it is given to turns."""
    by_call: dict[int, float | None] = {}
    of_end, given = reward, False
    for part in parts:
        scores: Mapping[int, float | None]
        if part.name == STEPS:
            scores = outcome.step_rewards
        elif part.of is JudgeScope.TURNS and part.judge is not None:
            scores = outcome.judged_turns.get(part.judge, {})
        else:
            continue
        given = True
        of_end -= part.weight * (values[part.label] or 0.0)
        for call, score in scores.items():
            before = by_call.get(call, 0.0)
            if score is None or before is None:
                by_call[call] = None
            else:
                by_call[call] = before + part.weight * score
    return TurnRewards(of_end, by_call) if given else None


def check_parts(config: RunConfig) -> None:
    """Raises ConfigError naming the first part that could not be computed, before anything runs."""
    seen: set[str] = set()
    for index, part in enumerate(config.reward.parts):
        where = f"campaign {config.name}: reward.parts[{index}] {part.label!r}"
        if part.label in seen:
            raise ConfigError(f"{where} is named twice", remedy="add up their weights in one part")
        seen.add(part.label)
        try:
            PARTS.check(part.name)
            signature = inspect.signature(_function(part.name))
            given = {"judges": None} if "judges" in signature.parameters else {}
            signature.bind(None, **_arguments(part), **given)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error.message}", remedy=error.remedy) from error
        except (TypeError, ValueError) as error:
            options = ", ".join(sorted(part.options)) or "no options"
            raise ConfigError(
                f"{where} cannot be called as (outcome, {options}): {error}",
                remedy="see docs/rewards.md for the options of every part",
            ) from None
        if part.name == "length":
            _check_length(where, part, config)


def _check_length(where: str, part: RewardPart, config: RunConfig) -> None:
    if not part.options:
        raise ConfigError(f"{where} needs an option", remedy="give free_tokens or free_turns")
    agents = config.agent_sections
    fewest = min(agents, key=lambda section: agents[section].step_limit)
    limits = {
        "free_tokens": ("policy.max_context", config.policy.max_context),
        "free_turns": (f"{fewest}.step_limit", agents[fewest].step_limit),
    }
    for name, free in part.options.items():
        field, limit = limits[name]
        if not 0 <= free < limit:
            raise ConfigError(f"{where}: {name} = {free:g}, expected 0 <= {name} < {field} {limit}")


def _value(part: RewardPart, outcome: Outcome, call: Calls) -> float | None:
    where = f"reward part {part.label!r} of rollout {outcome.rollout}"
    function = _function(part.name)
    try:
        value = call(function, outcome, _arguments(part))
    except (ServiceError, RewardBroken):
        raise  # of a judge that it asked: it may answer later, or does not exist
    except Exception as error:
        raise RewardBroken(
            f"{where} raised {type(error).__name__}: {error}", remedy=_CORRECT
        ) from error
    if value is None and part.name in PARTS:
        return None  # unknown; a function of one's own has rather forgotten its `return`
    return _finite(value, where)


def _arguments(part: RewardPart) -> dict[str, Any]:
    return {"judge": part.judge, "of": part.of} if part.name == JUDGE else dict(part.options)


def _finite(value: object, where: str) -> float:
    if isinstance(value, Real) and math.isfinite(value):
        return float(value)
    raise RewardBroken(f"{where} is {value!r:.80}, expected a finite number", remedy=_CORRECT)


@cache
def _function(name: str) -> Part:
    """Raises RewardBroken when there is nothing of that name."""
    try:
        return PARTS.find(name)
    except ConfigError as error:
        raise RewardBroken(error.message, remedy=error.remedy) from error
