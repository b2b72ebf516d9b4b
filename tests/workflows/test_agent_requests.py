"""Agents that offer tools, that rewrite what was said, and that break their word."""

import json
from collections.abc import Sequence

import pytest
from cluster import Cluster
from scripted import END

from infra.db.rollouts import turns
from mainspring.agents.bash import BashAgent
from mainspring.agents.bash_block import SUBMIT_SENTINEL
from mainspring.agents.protocol import Command, FormatError
from mainspring.agents.record import Record
from mainspring.programs.reply import Reply
from mainspring.programs.request import ChatMessage, ModelRequest, Role, ToolSpec
from mainspring.status import StopReason
from mainspring.tasks.task import Task
from mainspring.trajectories.samples import samples_of
from mainspring.trajectories.tree import branches, check_tree
from mainspring.trajectories.turns import Call, Execution

FIX = "sed -i 's/a - b/a + b/' calc.py"
SUBMIT = f"echo {SUBMIT_SENTINEL}"


class ToolAgent(BashAgent):
    tools = (ToolSpec(name="shell", parameters={"type": "object"}),)

    def parse(self, reply: Reply) -> tuple[Command, ...] | FormatError:
        given = [json.loads(call.arguments) for call in reply.tool_calls]
        return tuple(Command(each["command"]) for each in given) or FormatError(0)

    def after(self, reply: Call, executions: Sequence[Execution]) -> str:
        return " ".join(each.output.decode() for each in executions) or "call the tool"


class WindowAgent(BashAgent):
    """Is asked anew each turn, with what the last command printed."""

    appends = False

    def request(self, task: Task, record: Record) -> ModelRequest:
        if not record.calls:
            return super().request(task, record)
        last = record.calls[-1]
        told = f"{task.issue}\n{self.after(last, record.ran(last.number))}"
        return ModelRequest(messages=(ChatMessage(role=Role.USER, text=told),))


class ForgetfulAgent(WindowAgent):
    """Declares that it appends, which it does for one turn."""

    appends = True

    def request(self, task: Task, record: Record) -> ModelRequest:
        if len(record.calls) < 2:
            return BashAgent.request(self, task, record)
        return super().request(task, record)


def called(name: str, *commands: str) -> str:
    calls = [{"name": name, "arguments": {"command": command}} for command in commands]
    return "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)


def block(command: str) -> str:
    return f"THOUGHT: so\n\n```bash\n{command}\n```"


@pytest.mark.parametrize("together", [1, 8])
async def test_an_agent_plays_with_tools(cluster: Cluster, together: int) -> None:
    replies = [
        called("shell", "cat calc.py", "echo two"),
        called("browse", "ls"),
        called("shell", FIX),
        "no call",
        called("shell", SUBMIT),
    ]
    cluster.policy.say = lambda rollout, turn: replies[turn]
    rollout, result = await cluster.play(agent=f"{__name__}:ToolAgent", turns_per_activity=together)
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.SUBMITTED, 1.0, 5)
    calls, executions = await turns.history(cluster.db, rollout, 0)
    assert [(each.call, each.index) for each in executions] == [(0, 0), (0, 1), (2, 0), (4, 0)]
    parts = [each.parts for each in calls]
    assert [len(each.tool_calls) for each in parts if each] == [2, 1, 1, 0, 1]
    told = [bytes(each.prompt_ids).decode() for each in calls]
    assert told[0].startswith("<shell>\n")
    assert "return a - b" in told[1] and told[1].endswith("two\n")
    assert "'browse' was not offered: the tools are shell" in told[2]
    assert told[4] == "call the tool"
    check_tree(rollout, calls)
    assert len(branches(calls)) == 1


@pytest.mark.parametrize("together", [1, 8])
async def test_a_request_that_does_not_extend_the_last_call_begins_a_branch(
    cluster: Cluster, together: int
) -> None:
    replies = {0: block("cat calc.py"), 1: block(FIX), 2: block(SUBMIT)}
    given: list[str] = []

    def say(rollout: str, turn: int) -> str:
        given.append(replies[len(given)])
        return given[-1]

    cluster.policy.say = say
    rollout, result = await cluster.play(
        agent=f"{__name__}:WindowAgent", turns_per_activity=together
    )
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.SUBMITTED, 1.0, 3)
    calls, _ = await turns.history(cluster.db, rollout, 0)
    check_tree(rollout, calls)
    assert [(each.parent, each.prompt_start) for each in calls] == [(None, 0)] * 3
    assert [each.prompt_ids.count(END) for each in calls] == [0] * 3
    assert "return a - b" in bytes(calls[1].prompt_ids).decode()
    assert len(samples_of(rollout, calls)) == 3


async def test_an_agent_that_breaks_its_word_ends_its_rollout_by_name(cluster: Cluster) -> None:
    cluster.policy.say = lambda rollout, turn: block("ls")
    rollout, result = await cluster.play(agent=f"{__name__}:ForgetfulAgent")
    assert (result.stop_reason, result.reward) == (StopReason.INFRA_FAULT, None)
    fault = (await cluster.row(rollout)).fault
    assert fault is not None and "agent ForgetfulAgent" in fault and "after 2 calls" in fault
