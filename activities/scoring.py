"""The reward and the suspicions of a rollout's end: read, computed, not stored.

Invariants: functions of a campaign's own are not called here (`own_rewards`); suspicions are about
policies and exploits only, and no reward depends on them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from activities import seen_records
from infra.db.cache import FactCache, RolloutFacts
from infra.db.database import Database
from infra.db.rollouts import judgements
from infra.db.rollouts.outcomes import Played, played, step_rewards
from infra.db.rollouts.rollouts import RolloutRecord
from mainspring.agents.program import asked_by
from mainspring.agents.protocol import Agent, Command, FormatError
from mainspring.config.agents.judges import JudgeScope, QuestionScope
from mainspring.config.reward import STEPS, RewardConfig
from mainspring.config.run import RunConfig
from mainspring.ids import RolloutId
from mainspring.integrity.suspicion import after_grading, suspicions
from mainspring.rewards.judges import judge_plans
from mainspring.rewards.scoring import Outcome, Scored, score
from mainspring.rewards.votes import values_of
from mainspring.status import Player, StopReason, Suspicion, Verdict
from mainspring.tasks.any_task import AnyTask
from mainspring.tasks.swe_task import SweTask


async def score_rollout(
    db: Database,
    cache: FactCache,
    rollout: RolloutId,
    epoch: int,
    *,
    stop_reason: StopReason,
    verdict: Verdict | None,
    num_turns: int,
    scored: Scored | None = None,
    run: Callable[[Outcome], Awaitable[Scored]] | None = None,
) -> tuple[Scored, tuple[Suspicion, ...], int]:
    """The reward, the suspicions, and how many turns count: replies that are stored were given,
    also those of an activity that did not live to report them. Nothing for an epoch that is over:
    its end is refused anyway. `scored`: the reward, where functions of the campaign's own have
    computed it already; `run`: has them compute it now. Raises RewardBroken."""
    did = await played(db, rollout, epoch)
    if did is None:
        return scored or Scored(None), (), num_turns
    num_turns = max(num_turns, did.num_calls)
    facts = await cache.rollout(rollout)
    outcome, commands = await _outcome(
        db,
        facts,
        did,
        rollout,
        epoch,
        stop_reason=stop_reason,
        verdict=verdict,
        num_turns=num_turns,
    )
    if scored is None:
        scored = await _score(db, facts, outcome, epoch, run)
    return scored, await _suspicions(facts.task, did, commands, verdict), num_turns


async def score_stored(
    db: Database, cache: FactCache, ended: RolloutRecord, reward: RewardConfig
) -> Scored:
    """Score a rollout that has ended by another reward; its judges' scores are those that are
    stored. Raises RewardBroken."""
    did = await played(db, ended.id, ended.epoch)
    assert did is not None and ended.stop_reason is not None, f"{ended.id} has not ended"
    facts = await cache.rollout(ended.id)
    run = facts.config
    assert isinstance(run, RunConfig)
    facts = replace(facts, config=run.model_copy(update={"reward": reward}))
    outcome, _ = await _outcome(
        db,
        facts,
        did,
        ended.id,
        ended.epoch,
        stop_reason=ended.stop_reason,
        verdict=ended.verdict,
        num_turns=ended.num_turns,
    )
    if not reward.has_own_functions:
        return score(reward.parts, outcome)
    record = await seen_records.whole(db, facts, ended.id, ended.epoch)
    return await asyncio.to_thread(score, reward.parts, replace(outcome, record=record))


async def _outcome(
    db: Database,
    facts: RolloutFacts,
    did: Played,
    rollout: RolloutId,
    epoch: int,
    *,
    stop_reason: StopReason,
    verdict: Verdict | None,
    num_turns: int,
) -> tuple[Outcome, list[str]]:
    """All that the reward may depend on, and the commands that were run."""
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
        step_rewards=await step_rewards(db, rollout, epoch) if _has_steps(config) else {},
        **await _judged(db, config, did, rollout, epoch),
    )
    return outcome, commands


def _has_steps(config: RunConfig) -> bool:
    """Whether something asks for the rewards of single steps."""
    reward = config.reward
    return reward.has_own_functions or any(part.name == STEPS for part in reward.parts)


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
        if each.of is QuestionScope.TURNS:
            of_turns.setdefault(each.judge, {})[each.call] = each.score
    none = {part: 0.0 for part in asked if part[1] is JudgeScope.TURNS}
    return {"judged": {**none, **values_of(scores)}, "judged_turns": of_turns}


def _actions(agent: Agent, did: Played) -> list[tuple[Command, ...] | FormatError]:
    return [
        asked_by(agent, reply, parts) for reply, parts in zip(did.replies, did.parts, strict=True)
    ]


async def _score(
    db: Database,
    facts: RolloutFacts,
    outcome: Outcome,
    epoch: int,
    run: Callable[[Outcome], Awaitable[Scored]] | None,
) -> Scored:
    parts = facts.config.reward.parts
    if outcome.is_masked or not facts.config.reward.has_own_functions:
        return score(parts, outcome)
    if run is None:  # an older version began the rollout
        return await asyncio.to_thread(score, parts, outcome)
    record = await seen_records.whole(db, facts, RolloutId(outcome.rollout), epoch)
    return await run(replace(outcome, record=record))


async def _suspicions(
    task: AnyTask, did: Played, commands: list[str], verdict: Verdict | None
) -> tuple[Suspicion, ...]:
    if did.player not in (Player.POLICY, Player.EXPLOIT) or not isinstance(task, SweTask):
        return ()
    # A long rollout's commands take a while to read, and heartbeats share this loop.
    marks = await asyncio.to_thread(suspicions, commands, did.patch, task)
    return after_grading(marks, verdict, did.report)
