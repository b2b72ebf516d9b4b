"""The simulated fleet: a node, a grader, engines and a trainer that do their work at once.

Invariants: each method implements its activity's reference, so workflows cannot tell it from the
real one; the time it stands for has passed before it starts (`passing_time`); steps are committed
to the store as a trainer does. A loss is raised as a failure of its final kind, because `Faults`
compares Temporal's clock with this machine's.
"""

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.implements import implements
from activities.rollouts import RolloutActivities
from cli.bench.simulate import trace
from cli.bench.simulate.journal import Journal, PlayedLife
from cli.bench.simulate.lives import (
    Life,
    life_of,
    number_of,
    planned,
    play,
    sandbox_of,
    slice_of,
)
from cli.bench.simulate.setting import NOTICED_S, OnLoss, Setting
from infra.db.database import Database
from infra.db.training import steps
from mainspring.ids import CampaignId, NodeId, RolloutId
from mainspring.protocol.activities import (
    BEGIN_ROLLOUT,
    CLOSE_SANDBOX,
    COLLECT_PATCH,
    GRADE,
    OPEN_SANDBOX,
    PLAY_TURNS,
    PUBLISH_POLICY,
    RESTORE_SANDBOX,
    TRAIN_STEP,
)
from mainspring.protocol.campaign import PolicyRef, StepInput, StepResult
from mainspring.protocol.rollout import (
    BeginInput,
    BeginResult,
    GradeResult,
    OpenInput,
    PatchResult,
    PlayInput,
    PlayResult,
    RestoreResult,
    RolloutRef,
    SandboxInput,
    SandboxRef,
)
from mainspring.status import FaultKind, StopReason, Verdict
from mainspring.trajectories.tally import Tally

NODE = NodeId("simulated")


class SimulatedNode:
    def __init__(self, setting: Setting, journal: Journal, real: RolloutActivities) -> None:
        self._setting = setting
        self._journal = journal
        self._real = real
        self._sample: dict[tuple[RolloutId, int], str] = {}

    @implements(BEGIN_ROLLOUT)
    async def begin_rollout(self, ask: BeginInput) -> BeginResult:
        """The real claim; where machines die, a life is one attempt at one activity."""
        begun = await self._real.begin_rollout(ask)
        num_turns = self._setting.slice_turns or begun.step_limit
        return begun.model_copy(update={"turns_per_activity": num_turns})

    @implements(OPEN_SANDBOX)
    async def open_sandbox(self, ask: OpenInput) -> SandboxRef:
        sandbox = sandbox_of(ask.rollout, ask.epoch, ask.life)
        return SandboxRef(sandbox=sandbox, node=NODE, backend="simulated")

    @implements(PLAY_TURNS)
    async def play_turns(self, ask: PlayInput) -> PlayResult:
        number = number_of(ask.sandbox)
        whole = life_of(self._setting, ask.rollout, ask.epoch, number)
        life = slice_of(self._setting, whole, ask)
        noticed_s = NOTICED_S if life.is_lost else 0.0
        played = PlayedLife(life, _now_s() - noticed_s - life.play_s)
        self._journal.turns_played(ask.rollout, ask.epoch, number, played)
        if life.is_lost:
            raise self._loss()
        self._sample[ask.rollout, ask.epoch] = life.sample
        tally = self._tally(ask.tally, life)
        return PlayResult(tally=tally, is_closed=tally.stop is not None)

    @implements(COLLECT_PATCH)
    async def collect_patch(self, ask: SandboxInput) -> PatchResult:
        return PatchResult(num_bytes=0)

    @implements(RESTORE_SANDBOX)
    async def restore_sandbox(self, ask: SandboxInput) -> RestoreResult:
        life = life_of(self._setting, ask.rollout, ask.epoch, number_of(ask.sandbox))
        if life.is_lost_restoring:
            raise self._loss()
        return RestoreResult(rollout=ask.rollout, epoch=ask.epoch, num_turns=life.first)

    @implements(CLOSE_SANDBOX)
    async def close_sandbox(self, ask: SandboxInput) -> RolloutRef:
        return RolloutRef(rollout=ask.rollout, epoch=ask.epoch)

    @implements(GRADE)
    async def grade(self, ask: RolloutRef) -> GradeResult:
        solved = trace.is_solved(self._setting.seed, self._sample[ask.rollout, ask.epoch])
        return GradeResult(verdict=Verdict.RESOLVED if solved else Verdict.NOT_RESOLVED)

    def _tally(self, tally: Tally, life: Life) -> Tally:
        turns = planned(self._setting, life.sample)
        tally = play(tally, turns[tally.num_turns : life.last])
        if tally.stop is None and life.last == len(trace.turns(self._setting.seed, life.sample)):
            tally.stop = StopReason.SUBMITTED
        return tally

    def _loss(self) -> ApplicationError:
        # A fault whose fate is to mask is final: the group does not play the rollout again.
        masks = self._setting.on_loss is OnLoss.MASK
        kind = FaultKind.TASK_INVALID if masks else FaultKind.SANDBOX_LOST
        return ApplicationError(
            "the machine died",
            type=kind,
            non_retryable=True,
            category=ApplicationErrorCategory.BENIGN,
        )


class SimulatedTrainer:
    def __init__(self, db: Database, journal: Journal) -> None:
        self._db = db
        self._journal = journal

    @implements(TRAIN_STEP)
    async def train_step(self, ask: StepInput) -> StepResult:
        self._journal.step_ended(ask.step, _now_s())
        path = _path(ask.campaign, ask.step)
        await steps.commit_step(
            self._db,
            ask.campaign,
            ask.step,
            metrics={},
            policy_path=path,
            checkpoint=path,
            groups=await steps.step_groups(self._db, ask.campaign, ask.step),
        )
        return StepResult(version=ask.step, reward_mean=0.0, logprob_gap_max=None, seconds=0.0)

    @implements(PUBLISH_POLICY)
    async def publish_policy(self, ask: PolicyRef) -> PolicyRef:
        self._journal.published.setdefault(ask.version, _now_s())
        return ask


def _path(campaign: CampaignId, version: int) -> str:
    return f"/simulated/{campaign}/v{version}"


def _now_s() -> float:
    """Simulated: when the server scheduled this activity."""
    return activity.info().scheduled_time.timestamp()
