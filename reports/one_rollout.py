"""Everything that is stored about one rollout, put together for a person to read.

Read only; the numbers are those of the epoch that counts. Used by `mainspring rollout show`.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from infra.db import campaigns, groups, rollouts, tasks, turns
from infra.db.database import Database
from infra.db.rollouts import RolloutRecord
from mainspring.agents.choice import agent_for
from mainspring.agents.protocol import Agent, FormatError
from mainspring.config.agent import AgentConfig
from mainspring.ids import RolloutId
from mainspring.tasks.criterion import GradeReport
from mainspring.tasks.task import Task
from mainspring.trajectories.turns import Execution, Generation
from reports.export.trajectory import num_completion_tokens, num_prompt_tokens


@dataclass(frozen=True, slots=True)
class TurnView:
    number: int
    """From 1."""
    reply: str
    num_prompt_tokens: int | None
    """None: the endpoint did not count."""
    num_completion_tokens: int | None
    policy_versions: list[int]
    reply_s: float
    finish_reason: str
    not_run: str | None
    """Why nothing was run; None: its command ran."""
    returncode: int | None
    output: str | None
    truncated: bool
    """The output was longer than what is kept."""
    timed_out: bool
    command_s: float | None


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

    @property
    def spent_s(self) -> float | None:
        started, finished = self.record.started_at, self.record.finished_at
        return (finished - started).total_seconds() if started and finished else None

    def as_dict(self) -> dict[str, Any]:
        record = self.record
        words = ("id", "task", "sample_index", "player", "phase", "epoch", "stop_reason", "verdict")
        rest = ("reward", "reward_parts", "suspicions", "fault", "num_turns", "phase_s")
        rest = (*rest, "patch_note", "attempts")
        return {
            **{key: getattr(record, key) for key in (*words, *rest)},
            "split": self.split,
            "policy_version": self.policy_version,
            "created_at": _text(record.created_at),
            "started_at": _text(record.started_at),
            "finished_at": _text(record.finished_at),
            "issue": self.task.issue,
            "patch": self.patch,
            "grade_report": None if self.report is None else self.report.model_dump(mode="json"),
            "grade_output": self.grade_output,
            "turns": [
                {
                    "reply": turn.reply,
                    "num_prompt_tokens": turn.num_prompt_tokens,
                    "num_completion_tokens": turn.num_completion_tokens,
                    "policy_versions": turn.policy_versions,
                    "finish_reason": turn.finish_reason,
                    "reply_s": turn.reply_s,
                    "not_run": turn.not_run,
                    "returncode": turn.returncode,
                    "output": turn.output,
                    "output_truncated": turn.truncated,
                    "timed_out": turn.timed_out,
                    "command_s": turn.command_s,
                }
                for turn in self.turns
            ],
        }


async def read(database: Database, rollout: RolloutId) -> RolloutView:
    """Raises UnknownId."""
    record = await rollouts.get(database, rollout)
    config = (await campaigns.get(database, record.campaign)).config
    group = await groups.get(database, record.group)
    replies, commands = await turns.history(database, rollout, record.epoch)
    patch = await rollouts.get_final_patch(database, rollout)
    task = await tasks.get_task(database, record.task)
    return RolloutView(
        record=record,
        split=group.split,
        policy_version=group.policy_version,
        task=task,
        patch=None if patch is None else patch.decode(errors="replace"),
        report=await rollouts.get_grade_report(database, rollout),
        grade_output=await rollouts.get_grade_output(database, rollout, record.epoch),
        turns=_turns(config.agent, task, replies, commands),
    )


def _turns(
    config: AgentConfig, task: Task, replies: list[Generation], commands: list[Execution]
) -> list[TurnView]:
    if not replies:
        return []
    agent = agent_for(config, task)
    ran = {execution.turn: execution for execution in commands}
    return [_turn(agent, reply, ran.get(reply.turn)) for reply in replies]


def _turn(agent: Agent, reply: Generation, ran: Execution | None) -> TurnView:
    return TurnView(
        number=reply.turn + 1,
        reply=reply.text,
        num_prompt_tokens=num_prompt_tokens(reply),
        num_completion_tokens=num_completion_tokens(reply),
        policy_versions=sorted({span.version for span in reply.spans}),
        reply_s=reply.latency_s,
        finish_reason=reply.finish_reason,
        not_run=None if ran else _why_not(agent, reply),
        returncode=ran.returncode if ran else None,
        output=ran.output.decode(errors="replace") if ran else None,
        truncated=bool(ran and ran.truncated),
        timed_out=bool(ran and ran.timed_out),
        command_s=ran.wall_s if ran else None,
    )


def _why_not(agent: Agent, reply: Generation) -> str:
    if not isinstance(agent.parse(reply.text), FormatError):
        return "its command has no result: the rollout ended, or the command still runs"
    told = agent.after(reply, None).splitlines()[0]
    cut = reply.finish_reason == "length"
    return f"the reply was cut at its token limit. {told}" if cut else told


def _text(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="milliseconds")
