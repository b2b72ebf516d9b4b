"""Everything that is stored about one rollout, put together for a person to read.

Read only; the numbers are those of the epoch that counts. Used by `mainspring rollout show`.
"""

from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import groupby
from typing import Any

from infra.db.database import Database
from infra.db.rollouts import groups, judgements, labels, rollouts, turns
from infra.db.rollouts.judgements import JudgementRecord
from infra.db.rollouts.labels import Marks
from infra.db.rollouts.rollouts import RolloutRecord
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.db.training import step_details
from infra.db.training.step_details import StepOfRollout
from mainspring.agents.asking import next_request
from mainspring.agents.choice import agent_config, agent_for, name_of_agent
from mainspring.agents.program import asked_by
from mainspring.agents.protocol import Agent, FormatError
from mainspring.agents.record import Record
from mainspring.config.agents.judges import QuestionScope
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.run import RunConfig
from mainspring.ids import RolloutId
from mainspring.status import Player
from mainspring.tasks.criterion import GradeReport
from mainspring.tasks.task import Task
from mainspring.trajectories.costs import cost_of_all, num_completion_tokens, num_prompt_tokens
from mainspring.trajectories.turns import Call, Execution, by_call
from reports import program_view
from reports.program_view import ProgramView, ShownRequest


@dataclass(frozen=True, slots=True)
class CommandView:
    command: str
    returncode: int
    """-1: killed at its timeout."""
    output: str
    truncated: bool
    """The output was longer than what is kept."""
    timed_out: bool
    wall_s: float
    reward: float | None
    """Reward of this command alone; None: its environment gives none."""
    is_over: bool
    """The environment ended with it."""


@dataclass(frozen=True, slots=True)
class JudgementView:
    """One judgement of a turn, or of the rollout."""

    judge: str
    score: float | None
    """None: missing."""
    votes: list[float | None]
    """None: a vote that could not be read."""
    texts: list[str]
    """Its replies."""
    missing: str | None


@dataclass(frozen=True, slots=True)
class TurnView:
    number: int
    """From 1."""
    extends: int | None
    """The turn whose tokens its prompt extends; None: it begins a branch."""
    reply: str
    num_prompt_tokens: int | None
    """None: the endpoint did not count."""
    num_completion_tokens: int | None
    policy_versions: list[int]
    reply_s: float
    finish_reason: str
    not_run: str | None
    """Why nothing was run; None: a command ran."""
    commands: list[CommandView]
    """Those that ran, in their order."""
    branch: str | None = None
    """Branch of a program's call: "main", "agent" or "side"."""
    told: str = ""
    """Text of a program's call: what the request added to the one that it extends."""
    judgements: list[JudgementView] = field(default_factory=list)
    rewritten: str = ""
    """Text of the request that took the place of the agent's, where its context was full."""


@dataclass(frozen=True, slots=True)
class RolloutView:
    record: RolloutRecord
    split: str
    policy_version: int
    """The newest when its group was made."""
    task: Task
    patch: str | None
    report: GradeReport | None
    grade_output: str | None
    turns: list[TurnView]
    program: ProgramView | None
    """None: an agent whose turns Mainspring takes."""
    agent: str | None = None
    """Name of its section [agents.NAME], or its kind; None: no agent played."""
    judgements: list[JudgementView] = field(default_factory=list)
    """Judgements of the whole rollout."""
    cost: float | None = None
    """Dollars of its calls; None: there is no price, or not all tokens were counted."""
    model: str | None = None
    """Model that an evaluation measured; None: a policy of the campaign's own."""
    training: StepOfRollout | None = None
    """Record of what a step of its campaign did with it; None: nothing is stored."""
    marks: Marks = field(default_factory=Marks)
    """Labels and the note that people gave it."""

    def as_dict(self) -> dict[str, Any]:
        record = self.record
        words = ("id", "task", "sample_index", "player", "phase", "epoch", "stop_reason", "verdict")
        rest = ("reward", "reward_parts", "suspicions", "fault", "num_turns", "phase_s")
        rest = (*rest, "patch_note", "attempts")
        return {
            **{key: getattr(record, key) for key in (*words, *rest)},
            "agent": self.agent,
            "split": self.split,
            "policy_version": self.policy_version,
            "created_at": _text(record.created_at),
            "started_at": _text(record.started_at),
            "finished_at": _text(record.finished_at),
            "issue": self.task.issue,
            "patch": self.patch,
            "grade_report": None if self.report is None else self.report.model_dump(mode="json"),
            "grade_output": self.grade_output,
            "turns": [asdict(turn) for turn in self.turns],
            "program": None if self.program is None else asdict(self.program),
            "judgements": [asdict(judgement) for judgement in self.judgements],
            "cost": self.cost,
            "model": self.model,
            "training": None if self.training is None else _training_dict(self.training),
            **self.marks.as_dict(),
        }


@dataclass(frozen=True, slots=True)
class CallRange:
    """Calls of an epoch by number, both ends included."""

    first: int
    last: int


async def read(
    database: Database,
    rollout: RolloutId,
    *,
    only: CallRange | None = None,
    epoch: int | None = None,
) -> RolloutView:
    """`only`: the calls to read (default: all); then the cost is not known. `epoch`: of the calls
    (default: the one that counts). Raises UnknownId."""
    record = await rollouts.get(database, rollout)
    of_epoch = record.epoch if epoch is None else epoch
    group = await groups.get(database, record.group)
    run = (await campaigns.get(database, record.campaign)).config
    config, tasks_of = run.in_set(group.split), run.task_set(group.split)
    bounds = CallRange(0, turns.LAST_NUMBER) if only is None else only
    replies, commands = await turns.history(database, rollout, of_epoch, bounds.first, bounds.last)
    patch = await rollouts.get_final_patch(database, rollout)
    task = (await tasks.get_task(database, record.task)).asking_for(tasks_of.agent)
    judged = await judgements.of_rollout(database, rollout, of_epoch)
    requests = await program_view.requests_of(
        database, rollout, of_epoch, None if only is None else _asked(replies)
    )
    async with database.transaction() as connection:
        training = await step_details.of_rollout(connection, rollout)
        marks = await labels.of_rollout(connection, rollout)
    before = Record([], [])
    if bounds.first > 0 and _lacks_results(replies, commands, requests):
        # Why nothing was run follows from the whole record before it.
        before = Record(*await turns.history(database, rollout, of_epoch, 0, bounds.first - 1))
    plays = record.player is Player.POLICY
    kind = agent_config(config, task).kind if plays else config.agent.kind
    return RolloutView(
        record=record,
        split=group.split,
        policy_version=group.policy_version,
        task=task,
        patch=None if patch is None else patch.decode(errors="replace"),
        report=await rollouts.get_grade_report(database, rollout),
        grade_output=await rollouts.get_grade_output(database, rollout, record.epoch),
        turns=_turns(
            config,
            task,
            before,
            replies,
            commands,
            requests,
            {
                number: [_judgement(each) for each in of_call]
                for number, of_call in groupby(
                    sorted(
                        (each for each in judged if each.judgement.of is QuestionScope.TURNS),
                        key=lambda each: each.judgement.call,
                    ),
                    key=lambda each: each.judgement.call,
                )
            },
        ),
        judgements=[
            _judgement(each) for each in judged if each.judgement.of is QuestionScope.ROLLOUT
        ],
        program=await program_view.read(database, rollout, of_epoch, kind),
        agent=name_of_agent(config, task) if plays else None,
        cost=cost_of_all(replies, config.price) if only is None else None,
        model=config.policy.model if isinstance(config, EvaluationConfig) else None,
        training=training,
        marks=marks,
    )


def _training_dict(training: StepOfRollout) -> dict[str, Any]:
    trained = training.trained
    return {
        "step": training.step,
        "advantage": trained.advantage,
        "is_mean": trained.is_mean,
        "call_advantages": trained.call_advantages,
        "num_trained_tokens": trained.num_trained_tokens,
        "masked_why": trained.masked_why,
        "gaps": [asdict(gap) for gap in training.gaps],
    }


def _asked(replies: list[Call]) -> set[int]:
    """Numbers of the requests that these replies answer, and of those that they continue."""
    parents = {reply.parent for reply in replies if reply.parent is not None}
    return {reply.number for reply in replies} | parents


def _lacks_results(
    replies: list[Call], commands: list[Execution], requests: dict[int, ShownRequest]
) -> bool:
    ran = {execution.call for execution in commands}
    return any(reply.number not in ran and reply.number not in requests for reply in replies)


def _turns(
    config: RunConfig,
    task: Task,
    before: Record,
    replies: list[Call],
    commands: list[Execution],
    requests: dict[int, ShownRequest],
    judged: dict[int, list[JudgementView]],
) -> list[TurnView]:
    if not replies:
        return []
    agent = agent_for(config, task)
    record = Record([*before.calls, *replies], [*before.executions, *commands])
    ran, num_before = by_call(commands), len(before.calls)
    views: list[TurnView] = []
    for place, reply in enumerate(replies):
        done = ran[reply.number]
        is_open = not done and reply.number not in requests
        why_not = _why_not(agent, task, record.before(num_before + place + 1)) if is_open else None
        views.append(_turn(reply, done, requests, why_not, judged.get(reply.number, [])))
    return views


def _turn(
    reply: Call,
    ran: list[Execution],
    requests: dict[int, ShownRequest],
    why_not: str | None,
    judged: list[JudgementView],
) -> TurnView:
    request = requests.get(reply.number)
    before = None if reply.parent is None else requests.get(reply.parent)
    return TurnView(
        number=reply.number + 1,
        extends=None if reply.parent is None else reply.parent + 1,
        reply=reply.text,
        num_prompt_tokens=num_prompt_tokens(reply),
        num_completion_tokens=num_completion_tokens(reply),
        policy_versions=reply.versions,
        reply_s=reply.latency_s,
        finish_reason=reply.finish_reason,
        not_run=why_not,
        branch=None if request is None else request.kind,
        told="" if request is None else program_view.as_text(request.since(before)),
        judgements=judged,
        rewritten=program_view.as_text(reply.rewritten.messages) if reply.rewritten else "",
        commands=[
            CommandView(
                command=execution.command,
                returncode=execution.returncode,
                output=execution.output.decode(errors="replace"),
                truncated=execution.truncated,
                timed_out=execution.timed_out,
                wall_s=execution.wall_s,
                reward=execution.reward,
                is_over=execution.is_over,
            )
            for execution in ran
        ],
    )


def _judgement(record: JudgementRecord) -> JudgementView:
    return JudgementView(
        judge=record.judgement.judge,
        score=record.judgement.score,
        votes=[vote.value for vote in record.votes],
        texts=[vote.text for vote in record.votes],
        missing=record.judgement.missing,
    )


def _why_not(agent: Agent, task: Task, record: Record) -> str:
    """Nothing was run of the record's last reply."""
    reply = record.calls[-1]
    if reply.is_summary:
        return "it sums up the turns before it: the context was full"
    if not isinstance(asked_by(agent, reply.text, reply.parts), FormatError):
        return "its command has no result: the rollout ended, or the command still runs"
    message = next_request(agent, task, record).request.messages[-1].text.splitlines()[0]
    cut = reply.finish_reason == "length"
    return f"the reply was cut at its token limit. {message}" if cut else message


def _text(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="milliseconds")
