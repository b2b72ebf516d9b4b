"""Bookkeeping of rollouts, groups and campaigns: short calls on the store."""

from temporalio import activity

from activities.implements import implements
from activities.scoring import score_rollout
from infra.db.cache import FactCache
from infra.db.database import Database
from infra.db.nodes import nodes
from infra.db.rollouts import groups, rollouts
from infra.db.rollouts.groups import GroupRecord
from infra.db.runs import campaigns, runs
from infra.db.tasks import selections, task_histories
from infra.db.training import steps
from infra.tracking import process_figures
from mainspring.config.any_run import training
from mainspring.config.campaign import CampaignConfig
from mainspring.config.curriculum import SHUFFLED
from mainspring.config.run import RunConfig
from mainspring.curricula.choice import next_task
from mainspring.curricula.shuffled import task_position
from mainspring.ids import CampaignId, TaskId, group_id, rollout_id
from mainspring.programs.profiles.choice import is_program, remote_profile
from mainspring.protocol.activities import (
    BEGIN_ROLLOUT,
    CREATE_GROUP,
    FINISH_GROUP,
    FINISH_ROLLOUT,
    NEW_EPOCH,
    PLAN_STEP,
    SET_CAMPAIGN_STATUS,
)
from mainspring.protocol.campaign import (
    CreateGroupResult,
    FinishGroupInput,
    FinishGroupResult,
    GroupInput,
    PlanResult,
    Quorum,
    StatusInput,
    StatusResult,
    StepInput,
)
from mainspring.protocol.program import ProgramLimits
from mainspring.protocol.rollout import (
    BeginInput,
    BeginResult,
    FinishInput,
    FinishResult,
    NewEpochInput,
    RolloutRef,
)
from mainspring.protocol.scoring import ScoreResult
from mainspring.protocol.session import RemoteLimits
from mainspring.rewards.judges import judge_plans
from mainspring.rewards.scoring import Scored
from mainspring.status import CampaignStatus, GroupKind, Player
from mainspring.tasks.swe_task import SweTask
from mainspring.trajectories.seeds import draw_seed
from mainspring.trajectories.turn_rewards import TurnRewards

QUESTIONS_AT_ONCE = 10
"""Questions of a reward function to each judge that an attempt has time for."""


async def _task_of(db: Database, config: CampaignConfig, draw: int) -> tuple[str, TaskId]:
    """Label of the set that the draw takes, and its task."""
    label, own = config.label_of_draw(draw)
    ids = await selections.task_ids(db, config, label)
    return label, await _next_of(db, config, label, own, ids)


async def _next_of(
    db: Database, config: CampaignConfig, label: str, draw: int, ids: list[TaskId]
) -> TaskId:
    curriculum = config.curriculum
    if curriculum.kind == SHUFFLED:
        return ids[task_position(config.order_seed(label), draw, len(ids))]
    campaign = CampaignId(config.name)
    histories = await task_histories.read(db, campaign, ids, curriculum.recent_groups)
    return ids[next_task(histories, draw, config)]


async def make_group(db: Database, ask: GroupInput) -> GroupRecord:
    """Store a training group with its rollouts; the one that is there already."""
    # Not from the cache: a change may count for this group until it is stored.
    config = training((await campaigns.get(db, ask.campaign)).at(ask.policy_version + 1))
    draw = ask.draw
    label, task = await _task_of(db, config, ask.index if draw is None else draw)
    group = group_id(ask.campaign, ask.index)
    return await groups.create_group(
        db,
        group,
        ask.campaign,
        GroupKind.TRAIN,
        index=ask.index,
        draw=draw,
        task=task,
        policy_version=ask.policy_version,
        split=label,
        rollouts=[
            groups.NewRollout(
                rollout_id(group, i),
                task,
                i,
                config.policy.rollout_temperature,
                seed=None if draw is None else draw_seed(config.seed, task, draw, i),
            )
            for i in range(config.trainer.group_size)
        ],
    )


class RolloutActivities:
    def __init__(self, db: Database, cache: FactCache) -> None:
        self._db = db
        self._cache = cache

    @implements(BEGIN_ROLLOUT)
    async def begin_rollout(self, ask: BeginInput) -> BeginResult:
        claim = await rollouts.claim(self._db, ask.rollout, ask.run_id)
        facts = await self._cache.rollout(ask.rollout)
        config, task = facts.config, facts.task
        plays = claim.player is Player.POLICY
        # A verification may be of tasks whose agent does not exist.
        agent = facts.agent_config if plays else config.agent
        image = task.image if isinstance(task, SweTask) else None
        remote = remote_profile(agent) if plays else None
        opens = plays and remote is None
        prefer = await nodes.with_image(self._db, image) if opens and image else None
        return BeginResult(
            epoch=claim.epoch,
            task=claim.task,
            step_limit=agent.step_limit,
            max_format_errors=agent.max_format_errors,
            command_timeout_s=agent.command_timeout_s,
            request_timeout_s=config.policy.request_timeout_s,
            rollout_timeout_s=agent.rollout_timeout_s,
            test_timeout_s=task.test_timeout_s,
            prefer=prefer,
            player=claim.player,
            turns_per_activity=config.rollout.turns_per_activity,
            program=ProgramLimits(
                requests_per_minute=agent.requests_per_minute,
                parallel_requests=agent.parallel_requests,
            )
            if is_program(agent)
            else None,
            remote=RemoteLimits(silence_s=remote.silence_s, lives=remote.lives) if remote else None,
            score_s=_score_s(config),
            cost_limit=agent.cost_limit,
            judges=judge_plans(config) if plays and isinstance(config, RunConfig) else [],
        )

    @implements(NEW_EPOCH)
    async def new_epoch(self, ask: NewEpochInput) -> RolloutRef:
        epoch = await rollouts.new_epoch(self._db, ask.rollout, ask.from_epoch, ask.run_id)
        return RolloutRef(rollout=ask.rollout, epoch=epoch)

    @implements(FINISH_ROLLOUT)
    async def finish_rollout(self, ask: FinishInput) -> FinishResult:
        scored, suspicions, num_turns = await score_rollout(
            self._db,
            self._cache,
            ask.rollout,
            ask.epoch,
            stop_reason=ask.stop_reason,
            verdict=ask.verdict,
            num_turns=ask.num_turns,
            scored=None if ask.scored is None else _scored(ask.scored),
        )
        counts = await rollouts.finish(
            self._db,
            ask.rollout,
            ask.epoch,
            stop_reason=ask.stop_reason,
            verdict=ask.verdict,
            reward=scored.reward,
            fault=ask.fault,
            num_turns=num_turns,
            phase_s=ask.phase_s,
            reward_parts=scored.parts or None,
            turn_rewards=scored.turns,
            suspicions=suspicions,
        )
        process_figures.rollout_ended(activity.metric_meter(), ask.stop_reason, ask.verdict)
        return FinishResult(reward=counts, num_turns=num_turns)

    @implements(CREATE_GROUP)
    async def create_group(self, ask: GroupInput) -> CreateGroupResult:
        """The group, made now or long ago, and what of it is still to be played."""
        stored = await make_group(self._db, ask)
        assert stored.task is not None, "a training group is of one task"
        config = await self._cache.config(ask.campaign, stored.policy_version + 1)
        trainer = training(config).trainer
        quorum = None
        if trainer.quorum is not None:
            tally = await groups.tally(self._db, stored.id)
            quorum = Quorum(
                num_missing=max(0, trainer.quorum - tally.num_scored),
                straggler_s=trainer.straggler_s,
            )
        return CreateGroupResult(
            group=stored.id,
            task=stored.task,
            size=stored.size,
            status=stored.status,
            unfinished=await groups.unfinished(self._db, stored.id),
            policy_version=stored.policy_version,
            quorum=quorum,
        )

    @implements(FINISH_GROUP)
    async def finish_group(self, ask: FinishGroupInput) -> FinishGroupResult:
        status = await groups.finish_group(self._db, ask.group, cancelled=ask.cancelled)
        tally = await groups.tally(self._db, ask.group)
        return FinishGroupResult(
            status=status, num_resolved=tally.num_resolved, num_masked=tally.num_masked
        )

    @implements(SET_CAMPAIGN_STATUS)
    async def set_campaign_status(self, ask: StatusInput) -> StatusResult:
        is_prolonged = False
        if ask.status is CampaignStatus.FINISHED:
            await runs.refuse_open_parts(self._db, ask.campaign)
            is_prolonged = not await campaigns.finish(self._db, ask.campaign)
        else:
            await campaigns.set_status(self._db, ask.campaign, ask.status, ask.error)
        return StatusResult(campaign=ask.campaign, is_prolonged=is_prolonged)

    @implements(PLAN_STEP)
    async def plan_step(self, ask: StepInput) -> PlanResult:
        planned = await steps.plan_step(self._db, ask.campaign, ask.step, ask.num_groups)
        return PlanResult(groups=planned)


def _score_s(config: object) -> float | None:
    if not isinstance(config, RunConfig) or not config.reward.has_own_functions:
        return None
    # A function may ask one judge after the other. One that asks more often than this in an attempt
    # is answered from the store in the next.
    judges_s = sum(2 * judge.request_timeout_s for judge in config.judges.values())
    return config.reward.timeout_s + QUESTIONS_AT_ONCE * judges_s


def _scored(result: ScoreResult) -> Scored:
    turns = None if result.turns is None else TurnRewards.of_stored(result.turns)
    return Scored(result.reward, result.parts, turns)
