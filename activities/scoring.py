"""The reward and the suspicions of a rollout's end: read, computed, not stored.

Invariants: one read of the store; functions of a campaign's own run in a thread, are given
FUNCTION_TIMEOUT_S, and whatever they do wrong is RewardBroken, which ends the campaign; suspicions
are about policies and exploits only, and no reward depends on them.
"""

import asyncio
from typing import Any

from infra.db.cache import FactCache
from infra.db.database import Database
from infra.db.rollouts import judgements
from infra.db.rollouts.outcomes import Played, played
from mainspring.agents.program import asked_by
from mainspring.agents.protocol import Agent, Command, FormatError
from mainspring.config.agents.judges import JudgeScope
from mainspring.config.run import RunConfig
from mainspring.ids import RolloutId
from mainspring.integrity.suspicion import after_grading, suspicions
from mainspring.rewards.judges import judge_plans
from mainspring.rewards.scoring import Outcome, RewardBroken, Scored, has_own_functions, score
from mainspring.rewards.votes import values_of
from mainspring.status import Player, StopReason, Suspicion, Verdict
from mainspring.tasks.any_task import AnyTask
from mainspring.tasks.swe_task import SweTask

FUNCTION_TIMEOUT_S = 10.0
"""For one reward; half of what an attempt at a store call may take."""


async def score_rollout(
    db: Database,
    cache: FactCache,
    rollout: RolloutId,
    epoch: int,
    *,
    stop_reason: StopReason,
    verdict: Verdict | None,
    num_turns: int,
) -> tuple[Scored, tuple[Suspicion, ...], int]:
    """And how many turns count: replies that are stored were given, also those of an activity that
    did not live to report them. Nothing for an epoch that is over: writing its end is refused
    anyway. Raises RewardBroken."""
    did = await played(db, rollout, epoch)
    if did is None:
        return Scored(None), (), num_turns
    num_turns = max(num_turns, did.num_calls)
    facts = await cache.rollout(rollout)
    config = facts.config
    # A verification has none, and may be of tasks whose agent does not exist.
    actions = _actions(facts.agent, did) if did.replies else []
    errors = [action for action in actions if isinstance(action, FormatError)]
    commands = [
        command.command
        for action in actions
        if not isinstance(action, FormatError)
        for command in action
    ]
    outcome = Outcome(
        rollout=rollout,
        task=did.task,
        stop_reason=stop_reason,
        verdict=verdict,
        report=did.report,
        num_turns=num_turns,
        step_limit=(facts.agent_config if did.replies else config.agent).step_limit,
        num_format_errors=len(errors),
        num_completion_tokens=did.num_completion_tokens,
        num_tokens=did.num_tokens,
        max_context=config.policy.max_context,
        replies=did.replies,
        patch=did.patch,
        **await _judged(db, config, did, rollout, epoch),
    )
    return (
        await _score(config, outcome),
        await _suspicions(facts.task, did, commands, verdict),
        num_turns,
    )


async def _judged(
    db: Database, config: RunConfig, did: Played, rollout: RolloutId, epoch: int
) -> dict[str, Any]:
    """The fields of an Outcome that judges fill. A policy none of whose turns was to be
    judged, as it submitted at once, has 0 there: nothing is missing."""
    asked = [(plan.judge, plan.of) for plan in judge_plans(config)]
    if not asked or did.player is not Player.POLICY:
        return {}
    scores = await judgements.scores(db, rollout, epoch)
    of_turns: dict[str, dict[int, float | None]] = {}
    for each in scores:
        if each.of is JudgeScope.TURNS:
            of_turns.setdefault(each.judge, {})[each.call] = each.score
    none = {part: 0.0 for part in asked if part[1] is JudgeScope.TURNS}
    return {"judged": {**none, **values_of(scores)}, "judged_turns": of_turns}


def _actions(agent: Agent, did: Played) -> list[tuple[Command, ...] | FormatError]:
    return [
        asked_by(agent, reply, parts) for reply, parts in zip(did.replies, did.parts, strict=True)
    ]


async def _score(config: RunConfig, outcome: Outcome) -> Scored:
    parts = config.reward.parts
    if outcome.is_masked or not has_own_functions(parts):
        return score(parts, outcome)
    try:
        async with asyncio.timeout(FUNCTION_TIMEOUT_S):
            return await asyncio.to_thread(score, parts, outcome)
    except TimeoutError:
        names = ", ".join(part.label for part in parts)
        raise RewardBroken(
            f"the reward of rollout {outcome.rollout} ({names}) took longer than "
            f"{FUNCTION_TIMEOUT_S:g} s",
            remedy="let the function compute from its outcome alone, without waiting for anything",
        ) from None


async def _suspicions(
    task: AnyTask, did: Played, commands: list[str], verdict: Verdict | None
) -> tuple[Suspicion, ...]:
    if did.player not in (Player.POLICY, Player.EXPLOIT) or not isinstance(task, SweTask):
        return ()
    # A long rollout's commands take a while to read, and heartbeats share this loop.
    marks = await asyncio.to_thread(suspicions, commands, did.patch, task)
    return after_grading(marks, verdict, did.report)
