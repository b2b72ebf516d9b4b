"""Every activity as one object: name, input, result, queue and the time of one attempt.

Workflows call these objects (`workflows.activity_calls`) and activities implement them
(`activities.implements`), so the type checker follows a payload from one side to the other and an
editor finds the way. Names stand in Temporal's UI and in recorded histories: a name never changes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pydantic import BaseModel

from mainspring.ids import GRADE_QUEUE, JUDGE_QUEUE, ROLLOUT_QUEUE, SANDBOX_QUEUE, trainer_queue
from mainspring.protocol.campaign import (
    AdmitInput,
    AdmitResult,
    CampaignRef,
    CheckInput,
    CheckResult,
    CreateGroupResult,
    FinishGroupInput,
    FinishGroupResult,
    GroupInput,
    OutcomeInput,
    OutcomeResult,
    PlanResult,
    PolicyRef,
    SendResult,
    StatusInput,
    StatusResult,
    StepInput,
    StepResult,
    Survey,
    SurveyInput,
)
from mainspring.protocol.cross_testing import (
    CandidatesInput,
    CandidatesResult,
    CrossTestCounts,
    CrossTestInput,
)
from mainspring.protocol.extensions import ExtensionsInput, ExtensionsResult
from mainspring.protocol.judging import JudgeInput, JudgeResult
from mainspring.protocol.names import AwaitedActivity
from mainspring.protocol.program import (
    AnswerInput,
    AnswerResult,
    RunProgramInput,
    RunProgramResult,
)
from mainspring.protocol.retrain import RetrainSurvey, RetrainSurveyInput
from mainspring.protocol.rollout import (
    BeginInput,
    BeginResult,
    ExecuteInput,
    ExecuteResult,
    FinishInput,
    FinishResult,
    GenerateInput,
    GenerateResult,
    GradeResult,
    NewEpochInput,
    OpenInput,
    PatchResult,
    PlayInput,
    PlayResult,
    RestoreResult,
    RolloutRef,
    SandboxInput,
    SandboxRef,
)
from mainspring.protocol.run import RunGroupInput, RunGroupResult
from mainspring.protocol.scoring import ScoreInput, ScoreResult
from mainspring.protocol.session import (
    EndSessionInput,
    EndSessionResult,
    RefuseInput,
    SessionRef,
    SessionState,
)
from mainspring.protocol.sft import SftStepsInput, SftStepsResult, SftSurvey, SftSurveyInput
from mainspring.protocol.timeouts import (
    COLLECT_TIMEOUT_S,
    EXTENSIONS_TIMEOUT_S,
    GRADE_GRACE_S,
    HEARTBEAT_TIMEOUT_S,
    OPEN_TIMEOUT_S,
    REPLY_HEARTBEAT_TIMEOUT_S,
    SHELL_GRACE_S,
    SHORT_S,
    STORE_TIMEOUT_S,
)

In = TypeVar("In", bound=BaseModel)
Out = TypeVar("Out", bound=BaseModel)

PUBLISH_TIMEOUT_S = 1800.0
STEP_TIMEOUT_S = 6 * 3600.0
"""One attempt at a step, a warm start or a check; heartbeats notice a dead trainer much earlier."""


@dataclass(frozen=True, slots=True)
class ActivityRef(Generic[In, Out]):
    """One activity: takes `In`, gives `Out`."""

    name: str
    takes: type[In]
    gives: type[Out]
    timeout_s: float
    """Seconds of one attempt, without the caller's own share (a command's or a test's timeout)."""
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S
    """Without a beat for so long an attempt is over. Calls of the store have none."""


@dataclass(frozen=True, slots=True)
class StoreCall(ActivityRef[In, Out]):
    """A short database call, run by the worker that runs the workflow."""

    timeout_s: float = STORE_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class QueueCall(ActivityRef[In, Out]):
    """Heartbeating work for any worker that polls a shared queue."""

    queue: Callable[[In], str] = field(kw_only=True)
    """The task queue, for this input."""


@dataclass(frozen=True, slots=True)
class NodeCall(ActivityRef[In, Out]):
    """Heartbeating work in a sandbox, on the queue of the node that holds it."""

    timeout_s: float = SHORT_S


def _rollout_queue(_: BaseModel) -> str:
    return ROLLOUT_QUEUE


def _sandbox_queue(_: BaseModel) -> str:
    return SANDBOX_QUEUE


def _grade_queue(_: BaseModel) -> str:
    return GRADE_QUEUE


def _judge_queue(_: BaseModel) -> str:
    return JUDGE_QUEUE


def _trainer_queue(of: CampaignRef | PolicyRef | StepInput | CheckInput | SftStepsInput) -> str:
    return trainer_queue(of.campaign)


# One rollout.
BEGIN_ROLLOUT = StoreCall("begin_rollout", BeginInput, BeginResult)
"""Claim the rollout for this run; gives the epoch and what the workflow must know."""
NEW_EPOCH = StoreCall("new_epoch", NewEpochInput, RolloutRef)
"""Fence everything older after a sandbox could not be rebuilt."""
FINISH_ROLLOUT = StoreCall("finish_rollout", FinishInput, FinishResult)
"""Write how the rollout ended and its reward."""
READ_OUTCOME = StoreCall("read_outcome", OutcomeInput, OutcomeResult)
"""Read how a rollout ended that another run plays."""
GENERATE = QueueCall(
    AwaitedActivity.GENERATE.value,
    GenerateInput,
    GenerateResult,
    STORE_TIMEOUT_S,
    REPLY_HEARTBEAT_TIMEOUT_S,
    queue=_rollout_queue,
)
"""Ask the policy for the next reply and store it token by token. Own share: the request."""

# Its sandbox.
OPEN_SANDBOX = QueueCall(
    "open_sandbox", OpenInput, SandboxRef, OPEN_TIMEOUT_S, queue=_sandbox_queue
)
"""Open a sandbox on any node with room, or on the node that is preferred."""
EXECUTE = NodeCall("execute", ExecuteInput, ExecuteResult, SHELL_GRACE_S + COLLECT_TIMEOUT_S)
"""Run the reply's command in the rollout's sandbox, once. Own share: the command."""
PLAY_TURNS = NodeCall(
    "play_turns", PlayInput, PlayResult, STORE_TIMEOUT_S, REPLY_HEARTBEAT_TIMEOUT_S
)
"""Play several turns, replies and commands, resuming from what is stored; where they end, store the
patch and remove the sandbox. Own share: `play_s`."""
RESTORE_SANDBOX = NodeCall("restore_sandbox", SandboxInput, RestoreResult, SHELL_GRACE_S)
"""Replay the recorded commands in a new sandbox, checking each. Own share: the commands."""
COLLECT_PATCH = NodeCall("collect_patch", SandboxInput, PatchResult, COLLECT_TIMEOUT_S)
"""Store the working tree's difference from the base commit, then remove the sandbox."""
CLOSE_SANDBOX = NodeCall("close_sandbox", SandboxInput, RolloutRef)
"""Remove the sandbox."""

# A program that plays it.
RUN_PROGRAM = NodeCall(
    AwaitedActivity.RUN_PROGRAM.value, RunProgramInput, RunProgramResult, SHELL_GRACE_S
)
"""Start the program in the rollout's sandbox, once for each life, and wait for its end; a cancel
stops it. Own share: its last bound."""
ANSWER_CALL = QueueCall(
    AwaitedActivity.ANSWER_CALL.value,
    AnswerInput,
    AnswerResult,
    STORE_TIMEOUT_S,
    REPLY_HEARTBEAT_TIMEOUT_S,
    queue=_rollout_queue,
)
"""Ask the policy what the program asked, and store the reply. Own share: the request."""

# An agent outside that plays it.
OFFER_SESSION = StoreCall("offer_session", SessionRef, SessionState)
"""Offer the rollout's session to agents outside, once for each life."""
READ_SESSION = StoreCall("read_session", SessionRef, SessionState)
"""Read whether the session was taken or has ended."""
END_SESSION = StoreCall("end_session", EndSessionInput, EndSessionResult)
"""End the session unless it has ended; tells what stands."""
REFUSE_REQUESTS = StoreCall("refuse_requests", RefuseInput, RolloutRef)
"""Tell the agent that requests beyond a limit have no reply."""

# Its reward. Own share: the tests.
GIVE_PATCH = QueueCall("give_patch", RolloutRef, PatchResult, GRADE_GRACE_S, queue=_grade_queue)
"""Store the patch of a rollout that no policy plays."""
GRADE = QueueCall("grade", RolloutRef, GradeResult, GRADE_GRACE_S, queue=_grade_queue)
"""Judge the stored patch with the hidden tests in a fresh sandbox."""
JUDGE = QueueCall(
    AwaitedActivity.JUDGE.value,
    JudgeInput,
    JudgeResult,
    STORE_TIMEOUT_S,
    REPLY_HEARTBEAT_TIMEOUT_S,
    queue=_judge_queue,
)
"""Ask a judge for its votes on a turn or a rollout, and store each. Own share: the votes."""
SCORE = QueueCall(
    "score",
    ScoreInput,
    ScoreResult,
    STORE_TIMEOUT_S,
    REPLY_HEARTBEAT_TIMEOUT_S,
    queue=_judge_queue,
)
"""Have the campaign's own functions compute a reward. Own share: these, and judges they ask."""

# Groups and runs.
CREATE_GROUP = StoreCall("create_group", GroupInput, CreateGroupResult)
"""Choose the group's task and store the group with its rollouts."""
CREATE_RUN_GROUP = StoreCall("create_run_group", RunGroupInput, RunGroupResult)
"""Store the next part of an evaluation (also a campaign's own), a verification or a regrade."""
NEXT_CANDIDATES = StoreCall("next_candidates", CandidatesInput, CandidatesResult)
"""Read which rollouts of an evaluation are to be run against the tests of others."""
CROSS_TEST = QueueCall(
    "cross_test", CrossTestInput, CrossTestCounts, GRADE_GRACE_S, queue=_grade_queue
)
"""Run the tests that rollouts of a task wrote against one of their patches, each in a sandbox of
its own, and store each result. Own share: the tests, and their sandboxes."""
FINISH_GROUP = StoreCall("finish_group", FinishGroupInput, FinishGroupResult)
"""Close the group: ready for a step, masked or flat."""

# The campaign.
SURVEY_CAMPAIGN = StoreCall("survey_campaign", SurveyInput, Survey)
"""Read where the campaign stands."""
ADMIT_GROUPS = StoreCall("admit_groups", AdmitInput, AdmitResult)
"""Store the groups that may start now."""
SET_CAMPAIGN_STATUS = StoreCall("set_campaign_status", StatusInput, StatusResult)
"""Write the campaign's status."""
PLAN_STEP = StoreCall("plan_step", StepInput, PlanResult)
"""Fix the batch of a step."""
PUBLISH_POLICY = QueueCall(
    "publish_policy", PolicyRef, PolicyRef, PUBLISH_TIMEOUT_S, queue=_rollout_queue
)
"""Load a policy version into every engine."""
SEND_POLICY = QueueCall(
    "send_policy", PolicyRef, SendResult, PUBLISH_TIMEOUT_S, queue=_trainer_queue
)
"""Send a policy version from the trainer's ranks into every engine; PUBLISH_POLICY follows."""
PREPARE_POLICY = QueueCall(
    "prepare_policy", CampaignRef, PolicyRef, STEP_TIMEOUT_S, queue=_trainer_queue
)
"""Make or take the first policy, warm-start it, store it as version 0."""
TRAIN_STEP = QueueCall("train_step", StepInput, StepResult, STEP_TIMEOUT_S, queue=_trainer_queue)
"""One optimizer step on the planned batch, committed with its checkpoint."""
CHECK_LOGPROBS = QueueCall(
    "check_logprobs", CheckInput, CheckResult, STEP_TIMEOUT_S, queue=_trainer_queue
)
"""Recompute an evaluation's log-probs under the same weights."""

# A supervised run. Its first version is prepared as that of a campaign is.
SURVEY_SFT = StoreCall("survey_sft", SftSurveyInput, SftSurvey)
"""Read where the supervised run stands."""
SFT_STEPS = QueueCall(
    "sft_steps", SftStepsInput, SftStepsResult, STEP_TIMEOUT_S, queue=_trainer_queue
)
"""The steps up to the next version, each with its figures, and that version."""

# A campaign that trains another one's batches again.
SURVEY_RETRAIN = StoreCall("survey_retrain", RetrainSurveyInput, RetrainSurvey)
"""Read where that campaign stands."""

# Before a run is stored.
CHECK_EXTENSIONS = QueueCall(
    "check_extensions",
    ExtensionsInput,
    ExtensionsResult,
    EXTENSIONS_TIMEOUT_S,
    queue=lambda ask: ask.queue,
)
"""Try to import a run's extensions in one process."""


def reply_s(request_timeout_s: float) -> float:
    """Time that one reply may take."""
    return GENERATE.timeout_s + request_timeout_s


def command_s(command_timeout_s: float) -> float:
    """Time that one command may take."""
    return EXECUTE.timeout_s + command_timeout_s


def play_s(num_turns: int, request_timeout_s: float, command_timeout_s: float) -> float:
    """Own share of PLAY_TURNS: turns of one command. With more of them it plays fewer turns."""
    return num_turns * (reply_s(request_timeout_s) + command_s(command_timeout_s))
