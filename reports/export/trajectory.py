"""A trajectory: one ended rollout with everything that the store knows about it.

Owns the numbers that exports give to rollouts: a group's is its place among the campaign's groups,
the index counts a task's rollouts within the group, the sample within the campaign. They stay when
more is played. Read one at a time: a campaign's trajectories do not fit into memory. Imported by
the formats beside this file.
"""

import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from infra.db.database import Database
from infra.db.rollouts import groups, labels, rollouts, turns
from infra.db.rollouts.groups import GroupRecord
from infra.db.rollouts.rollouts import RolloutRecord
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.db.training.batches import calls_of, trained_of
from mainspring.agents.asking import next_request
from mainspring.agents.choice import agent_config, agent_for
from mainspring.agents.protocol import Agent, Message
from mainspring.agents.record import Record
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.run import RunConfig
from mainspring.ids import CampaignId
from mainspring.programs.request import ChatMessage, ModelRequest, Role
from mainspring.status import Player, RolloutPhase, Verdict, is_masked
from mainspring.tasks.criterion import GradeReport
from mainspring.tasks.task import Task
from mainspring.trajectories.costs import (
    cost_of_all,
    num_completion_tokens,
    num_prompt_tokens,
)
from mainspring.trajectories.samples import Sample, samples_of
from mainspring.trajectories.tree import branches
from mainspring.trajectories.turns import Call, Execution, by_call
from reports import program_view
from reports.program_view import ShownRequest

_GIVEN = (Player.GOLD, Player.EMPTY, Player.EXPLOIT)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")

Progress = Callable[[int, int], None]
"""Called with how many are written, and of how many."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Which rollout, and how it is called outside."""

    rollout: RolloutRecord
    group: GroupRecord
    group_number: int
    index: int
    sample: int

    @property
    def name(self) -> str:
        """Unique within the campaign, and fit to be a file's name."""
        safe = _UNSAFE.sub("_", self.rollout.task).lstrip(".")
        return f"{safe}__g{self.group_number}__i{self.index}"

    @property
    def is_resolved(self) -> bool:
        return self.rollout.verdict is Verdict.RESOLVED

    @property
    def is_masked(self) -> bool:
        """Something else than the agent failed: neither resolved nor unresolved."""
        return is_masked(self.rollout.stop_reason, self.rollout.verdict)


@dataclass(frozen=True)
class Trajectory:
    attempt: Attempt
    config: RunConfig
    task: Task
    patch: bytes
    """Empty when there is none."""
    report: GradeReport | None
    grade_output: str | None
    replies: list[Call]
    executions: list[Execution]
    """In their order; a command that never ended has none."""
    requests: dict[int, ShownRequest] = field(default_factory=dict)
    """Requests of a program, by number of the call."""
    untrained: frozenset[int] = frozenset()
    """Calls that are context only."""

    @property
    def rollout(self) -> RolloutRecord:
        return self.attempt.rollout

    @property
    def instance_id(self) -> str:
        """The task's id in the data set it is from; an import may have prefixed it."""
        return self.task.metadata.get("instance_id", self.rollout.task)

    @property
    def model(self) -> str:
        """Who made the patch; one that is graded again keeps its campaign's model."""
        player = self.rollout.player
        return player.value if player in _GIVEN else self.config.policy.model

    @cached_property
    def agent(self) -> Agent:
        """Who played it."""
        return agent_for(self.config, self.task)

    @property
    def agent_section(self) -> AgentConfig:
        """Section of who played it; of [agent] where a patch was given."""
        return agent_config(self.config, self.task) if self.replies else self.config.agent

    @cached_property
    def branches(self) -> list[tuple[Call, ...]]:
        """Each path of replies from root to leaf, in the order of the leaves. One without replies
        where nothing was played."""
        return branches(self.replies) or [()]

    @property
    def messages(self) -> list[Message]:
        """Messages of the last branch."""
        return self.messages_of(self.branches[-1])

    def messages_of(self, branch: tuple[Call, ...]) -> list[Message]:
        """Words to and from the policy in this branch; empty when nothing was played."""
        if not branch:
            return []
        last = branch[-1]
        if last.number in self.requests:
            request = self.requests[last.number].request
        elif last.rewritten is not None:
            request = last.rewritten
        else:
            request = self._request_after(self.replies.index(last))
        return [*map(_message, request.messages), _reply(last)]

    def told_after(self, reply: Call) -> str:
        """Words of the agent that followed the reply."""
        return self._request_after(self.replies.index(reply) + 1).messages[-1].text

    def _request_after(self, num_calls: int) -> ModelRequest:
        """Request to the policy after the first `num_calls` calls."""
        record = Record(self.replies, self.executions).before(num_calls)
        return next_request(self.agent, self.task, record).request

    @cached_property
    def samples(self) -> list[Sample] | None:
        """Sample of each branch, as a trainer sees it; None where replies came without tokens."""
        if not self.replies or not all(reply.completion_ids for reply in self.replies):
            return None
        trained = trained_of(self.replies, self.untrained)
        return samples_of(self.rollout.id, self.replies, trained=trained)

    def ran(self, reply: Call) -> list[Execution]:
        """Executions of the reply's commands, in order."""
        return self._by_call[reply.number]

    @cached_property
    def _by_call(self) -> defaultdict[int, list[Execution]]:
        return by_call(self.executions)

    @property
    def num_prompt_tokens(self) -> int | None:
        """Sent over all turns: a turn sends everything before it again."""
        return _sum(num_prompt_tokens(reply) for reply in self.replies)

    @property
    def num_completion_tokens(self) -> int | None:
        return _sum(num_completion_tokens(reply) for reply in self.replies)

    @property
    def cost(self) -> float | None:
        """Dollars of its calls; None: there is no price, or not all tokens were counted."""
        return cost_of_all(self.replies, self.config.price)

    @property
    def policy_versions(self) -> list[int]:
        return sorted({version for reply in self.replies for version in reply.versions})

    def outcome(self) -> dict[str, Any]:
        """How it ended, in plain words and numbers, as several formats hold it."""
        rollout = self.rollout
        return {
            "rollout": rollout.id,
            "campaign": rollout.campaign,
            "instance_id": self.instance_id,
            "group": self.attempt.group_number,
            "index": self.attempt.index,
            "sample": self.attempt.sample,
            "stop_reason": rollout.stop_reason,
            "verdict": rollout.verdict,
            "resolved": self.attempt.is_resolved,
            "masked": self.attempt.is_masked,
            "error": rollout.fault,
            "reward": rollout.reward,
            "reward_parts": rollout.reward_parts,
            "suspicions": rollout.suspicions,
            "n_steps": rollout.num_turns,
        }


def _reply(call: Call) -> Message:
    return {"role": "assistant", "content": call.text}


def _message(message: ChatMessage) -> Message:
    """Without ids: tool calls as text, tools' results as the user's."""
    calls = [f"{call.name} {call.arguments}" for call in message.tool_calls]
    role = "user" if message.role is Role.TOOL else message.role.value
    return {"role": role, "content": "\n".join(part for part in (message.text, *calls) if part)}


def _sum(counts: Iterable[int | None]) -> int | None:
    """None where one of them is not known: a part is no total."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


async def attempts(
    database: Database,
    campaign: CampaignId,
    *,
    resolved: bool = False,
    label: str | None = None,
    limit: int | None = None,
) -> list[Attempt]:
    """The campaign's ended rollouts, oldest group first; only resolved ones, only those with this
    label, the first `limit`. Raises UnknownId."""
    await campaigns.get(database, campaign)
    labelled = None if label is None else await labels.having(database, campaign, label)
    by_group = {
        group.id: (number, group)
        for number, group in enumerate(await groups.list_groups(database, campaign))
    }
    records = await rollouts.list_rollouts(database, campaign=campaign)
    # A group made since is left for the next time.
    records = [record for record in records if record.group in by_group]
    records.sort(key=lambda record: (by_group[record.group][0], record.sample_index))
    ended: list[Attempt] = []
    seen: Counter[object] = Counter()
    for record in records:
        number, group = by_group[record.group]
        of_group = (record.group, record.task)
        ended.append(Attempt(record, group, number, seen[of_group], seen[record.task]))
        seen.update((of_group, record.task))
    chosen = [
        attempt
        for attempt in ended
        if attempt.rollout.phase is RolloutPhase.DONE
        and (attempt.is_resolved or not resolved)
        and (labelled is None or attempt.rollout.id in labelled)
    ]
    return chosen[:limit]


async def read(
    database: Database, campaign: CampaignId, chosen: list[Attempt], progress: Progress
) -> AsyncIterator[Trajectory]:
    """The trajectories of `chosen`, one at a time."""
    config = (await campaigns.get(database, campaign)).config
    for done, attempt in enumerate(chosen):
        rollout, label = attempt.rollout, attempt.group.split
        agent = config.task_set(label).agent
        replies, executions = await turns.history(database, rollout.id, rollout.epoch)
        yield Trajectory(
            attempt=attempt,
            config=config.in_set(label),
            task=(await tasks.get_task(database, rollout.task)).asking_for(agent),
            patch=await rollouts.get_patch(database, rollout.id, rollout.epoch) or b"",
            report=await rollouts.get_grade_report(database, rollout.id),
            grade_output=await rollouts.get_grade_output(database, rollout.id, rollout.epoch),
            replies=replies,
            executions=executions,
            requests=await program_view.requests_of(database, rollout.id, rollout.epoch),
            untrained=(await calls_of(database, rollout.id, rollout.epoch))[1],
        )
        progress(done + 1, len(chosen))
