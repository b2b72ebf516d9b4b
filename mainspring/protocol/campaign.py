"""Payloads of groups, steps and the campaign itself."""

from pydantic import BaseModel

from mainspring.config.campaign import CampaignConfig
from mainspring.ids import CampaignId, GroupId, RolloutId, TaskId
from mainspring.protocol.rollout import RolloutResult
from mainspring.status import CampaignStatus, GroupStatus, Publish


class GroupInput(BaseModel):
    campaign: CampaignId
    index: int
    policy_version: int
    """The newest version when the group was admitted."""
    draw: int | None = None
    """Which draw of the tasks it is, in a reproducible campaign; None: its index."""


class Quorum(BaseModel):
    """When a group stops waiting for its slowest rollouts."""

    num_missing: int
    """Rollouts that must be scored yet before the others become stragglers."""
    straggler_s: float
    """Time that these have left for replies and commands."""


class CreateGroupResult(BaseModel):
    group: GroupId
    task: TaskId
    size: int
    status: GroupStatus = GroupStatus.RUNNING
    unfinished: list[int] | None = None
    """Rollouts to play, by sample index; None: all."""
    policy_version: int | None = None
    """The version it was first admitted under."""
    quorum: Quorum | None = None
    """None: the group waits for all of its rollouts."""


class GroupDone(BaseModel):
    """Signal from a group to its campaign, which then looks into the store."""

    index: int
    status: GroupStatus
    broken: str | None = None
    """Why no rollout of this campaign can be scored."""


class BatchDropped(BaseModel):
    """Signal to a campaign that an operator took the plan of a step back."""

    step: int


class FinishGroupInput(BaseModel):
    group: GroupId
    cancelled: bool = False


class FinishGroupResult(BaseModel):
    status: GroupStatus
    num_resolved: int = 0
    num_masked: int = 0


class StatusInput(BaseModel):
    campaign: CampaignId
    status: CampaignStatus
    error: str | None = None


class CampaignRef(BaseModel):
    campaign: CampaignId


class StatusResult(CampaignRef):
    is_prolonged: bool = False
    """It is not finished: a change gave it more steps before its end was written."""


class PolicyRef(BaseModel):
    campaign: CampaignId
    version: int


class SendResult(BaseModel):
    num_engines: int
    """That got the version; those that had it before are not counted."""
    reason: str | None = None
    """Why it was not sent, or not to all; the version's files are loaded then."""


class StepInput(BaseModel):
    campaign: CampaignId
    step: int
    """1-based; step n makes policy version n."""
    num_groups: int


class PlanResult(BaseModel):
    groups: list[GroupId]
    """The batch; empty when fewer groups are ready than the workflow believed."""


class StepResult(BaseModel):
    version: int
    reward_mean: float
    logprob_gap_max: float | None
    """None: the batch has no token of the weights that the step began with."""
    seconds: float
    replaced: str | None = None
    """Why nothing was trained and the plan was taken back; then `version` is the one before."""


class CheckInput(BaseModel):
    campaign: CampaignId
    group: GroupId
    version: int


class CheckResult(BaseModel):
    logprob_gap_max: float | None
    num_tokens: int


class CampaignPlan(BaseModel):
    """The numbers of a campaign's configuration that its workflow decides by."""

    num_steps: int
    groups_per_step: int
    max_staleness: int
    eval_every_steps: int
    eval_splits: list[str]
    eval_greedy: bool
    eval_concurrency: int
    max_flat_groups: int | None = None
    """Groups in a row with equal rewards before the campaign fails; None: no bound."""
    publish: Publish = Publish.DISK
    colocate: bool = False
    """The trainer's activities leave engines without memory, until a version is published."""


def plan_of(config: CampaignConfig) -> CampaignPlan:
    trainer, evaluation = config.trainer, config.evaluation
    return CampaignPlan(
        num_steps=trainer.num_steps,
        groups_per_step=trainer.groups_per_step,
        max_staleness=trainer.max_staleness,
        eval_every_steps=evaluation.every_steps,
        eval_splits=list(evaluation.measured),
        eval_greedy=evaluation.greedy,
        eval_concurrency=evaluation.concurrency,
        max_flat_groups=trainer.flat_groups_bound,
        publish=config.policy.publish,
        colocate=trainer.colocate,
    )


class CampaignState(BaseModel):
    """Carried over continue-as-new. What is done stands in Postgres and is read there."""

    campaign: CampaignId
    plan: CampaignPlan
    published_version: int = -1
    """Version that a run of this chain loaded into the engines; -1: none yet."""
    measured_version: int = -1
    """Newest version with all its evaluations in, as far as this chain saw to it."""
    in_flight: list[int] = []
    """Groups that this chain started and that have not reported."""
    since: float | None = None
    """When the campaign was last started, in unix seconds: groups that were masked before do not
    count against it."""
    paused: bool = False
    broken: str | None = None
    """Why no rollout can be scored; the campaign fails with it."""
    notice: str | None = None
    """Sentence that a person should know until the next step."""


class SurveyInput(BaseModel):
    campaign: CampaignId
    since: float
    """Masked and flat groups in a row are counted from here, in unix seconds."""
    status: CampaignStatus
    """Status that its row is to have while the workflow runs."""


class Survey(BaseModel):
    """Where a campaign stands in the store."""

    version: int | None
    """The newest policy version; None: not even the first is made."""
    planned_step: int | None = None
    """The step whose batch is fixed and not trained yet."""
    running: list[int] = []
    """Training groups in flight, by index."""
    num_ready: int = 0
    """Training groups that wait for a step, those of the planned one among them."""
    num_masked_in_a_row: int = 0
    masked_by: str | None = None
    """The newest fault of the rollouts of those."""
    num_flat_in_a_row: int = 0
    flat_as: str | None = None
    """Rewards and ends of the rollouts of those, in words, where they are too many."""
    evaluated: list[GroupId] = []
    """Evaluations of the served version that are complete."""
    is_checked: bool = False
    """The served version's log-probs were compared on an evaluation."""
    served: int | None = None
    """The version that engines are to serve now, where it is not the newest."""
    next_index: int | None = None
    """Index of the next training group; None: an earlier version did not tell."""
    plan: CampaignPlan | None = None
    """The campaign's numbers for the next step; None: an earlier version did not tell."""


class AdmitInput(BaseModel):
    campaign: CampaignId
    policy_version: int
    """Nothing is admitted when a newer one exists: it must be published first."""
    num_steps: int
    groups_per_step: int
    max_staleness: int


class AdmitResult(BaseModel):
    running: list[int]
    """Every training group in flight, those made now included."""


class OutcomeInput(BaseModel):
    rollout: RolloutId


class OutcomeResult(BaseModel):
    """How a rollout ended; without a result it has not, or it was cancelled or terminated."""

    result: RolloutResult | None = None
    is_free: bool = False
    """No run plays it: it has ended, also by a cancel, or it waits for its first or next run."""


class CampaignProgress(BaseModel):
    """Answer of the `progress` query."""

    step: int
    num_steps: int
    in_flight: int
    ready: int
    paused: bool
    doing: str
    waiting_for: str | None = None
    """Event that has to come next, in words; None: nothing is waited for."""
    waiting_since: float | None = None
    """In unix seconds."""
    waiting_queue: str | None = None
    """The task queue whose workers it is up to."""
    waiting_until: float | None = None
    """When an attempt at it is given up and made again, in unix seconds; None: there is no bound
    of its own."""
