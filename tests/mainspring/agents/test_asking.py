"""What the policy is asked next: from the record alone, only what is new, and never what it cannot
be asked."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from mainspring.agents.asking import AgentBroken, check_asking, next_request
from mainspring.agents.bash import BashAgent
from mainspring.agents.conversation import ConversationAgent
from mainspring.agents.protocol import Command, FormatError, Message, commands_in
from mainspring.agents.record import Record
from mainspring.config.agents.agent import AgentConfig
from mainspring.ids import TaskId
from mainspring.programs.matching import chain, continued
from mainspring.programs.reply import Reply
from mainspring.programs.request import ChatMessage, ModelRequest, Role, ToolCall, ToolSpec
from mainspring.tasks.swe_task import SweTask
from mainspring.tasks.task import Task
from mainspring.trajectories.turns import Call, Execution

TASK = SweTask(
    id=TaskId("t-1"), source="s", split="train", issue="i", files={"a": ""}, test_command="true"
)
RUN = ToolSpec(name="run", parameters={"type": "object"})
READ = ToolSpec(name="read", parameters={"type": "object"})


class ToolAgent(ConversationAgent):
    """Two tools; each call of one is a command."""

    tools = (RUN, READ)

    def __init__(self) -> None:
        self.num_told = 0

    def opening(self, task: Task) -> Sequence[Message]:
        return [{"role": "system", "content": "rules"}, {"role": "user", "content": task.issue}]

    def parse(self, reply: Reply) -> tuple[Command, ...] | FormatError:
        return tuple(Command(f"{call.name} {call.arguments}") for call in reply.tool_calls) or (
            FormatError(0)
        )

    def after(self, reply: Call, executions: Sequence[Execution]) -> str:
        self.num_told += 1
        return ", ".join(each.output.decode() for each in executions) or "call a tool"

    def is_done(self, execution: Execution) -> bool:
        return False


class Asks(ToolAgent):
    """Asks what a test gives it."""

    def __init__(self, *requests: Any, appends: bool = True) -> None:
        super().__init__()
        self.requests = requests
        self.appends = appends

    def request(self, task: Task, record: Record) -> ModelRequest:
        return self.requests[len(record.calls)]


def said(text: str, number: int = 0, *calls: tuple[str, str]) -> Call:
    tool_calls = tuple(ToolCall(name=name, arguments=arguments) for name, arguments in calls)
    parts = Reply(text=text, tool_calls=tool_calls) if calls else None
    parent = number - 1 if number else None
    return Call(number, parent, 0, (), (), (), (), text, "stop", parts=parts)


def ran(call: int, index: int, output: str) -> Execution:
    return Execution(call, index, "c", 0, output.encode(), False, False, 0.0)


def asking(*texts: str, tools: Sequence[ToolSpec] = ()) -> ModelRequest:
    """The texts are the user's and the policy's in turn."""
    roles = (Role.USER, Role.ASSISTANT)
    messages = (ChatMessage(role=roles[n % 2], text=text) for n, text in enumerate(texts))
    return ModelRequest(messages=tuple(messages), tools=tuple(tools))


def test_a_conversation_is_continued_and_what_was_said_is_not_said_again() -> None:
    agent = BashAgent(AgentConfig())
    calls = [said(f"```bash\nls {n}\n```", n) for n in range(6)]
    done = [ran(n, 0, f"out {n}\n") for n in range(6)]
    known = None
    for num_calls in range(7):
        record = Record(calls[:num_calls], done[:num_calls])
        known = next_request(agent, TASK, record, known)
        anew = next_request(agent, TASK, record)
        assert (known.request, known.digests) == (anew.request, anew.digests)
        assert known.digests == chain(known.request)
        assert [each.call for each in known.stored] == calls[:num_calls]
    roles = [message.role for message in known.request.messages]
    assert roles == [Role.SYSTEM, Role.USER, *[Role.ASSISTANT, Role.USER] * 6]
    assert "out 3" in known.request.messages[9].text

    counted = ToolAgent()
    known = next_request(counted, TASK, Record(calls[:5], done[:5]))
    counted.num_told = 0
    next_request(counted, TASK, Record(calls, done), known)
    assert counted.num_told == 1


def test_summaries_are_no_turns_of_the_agent() -> None:
    """At any place, several in a row, and the newest; known or from the store, it is the same."""
    agent = BashAgent(AgentConfig())
    plain = [said(f"```bash\nls {n}\n```", n) for n in range(4)]
    calls: list[Call] = []
    done: list[Execution] = []
    for kind in "tstsstst":
        number = len(calls)
        if kind == "s":
            asked = asking("task", "earlier", "sum up")
            calls.append(replace(said("It works.", number), rewritten=asked, is_summary=True))
            continue
        turn = sum(not call.is_summary for call in calls)
        calls.append(replace(plain[turn], number=number))
        done.append(ran(number, 0, f"out {turn}\n"))
    known = None
    for num_calls in range(len(calls) + 1):
        record = Record(calls[:num_calls], [e for e in done if e.call < num_calls])
        known = next_request(agent, TASK, record, known)
        assert known == next_request(agent, TASK, record)
        assert [each.call for each in known.stored] == calls[:num_calls]
        turns = [call for call in calls[:num_calls] if not call.is_summary]
        others = Record(turns, record.executions)
        assert known.request == next_request(agent, TASK, others).request
        summaries = [n for n, call in enumerate(calls[:num_calls]) if call.is_summary]
        assert known.num_summaries == len(summaries)
    roles = [message.role for message in known.request.messages]
    assert roles == [Role.SYSTEM, Role.USER, *[Role.ASSISTANT, Role.USER] * 4]


def test_results_of_tools_stand_beside_their_calls() -> None:
    agent = ToolAgent()
    call = said("I look.", 0, ("read", '{"path": "a"}'), ("run", '{"cmd": "ls"}'))
    record = Record([call], [ran(0, 0, "text of a"), ran(0, 1, "a b")])
    asked = next_request(agent, TASK, record)
    reply, first, second = asked.request.messages[2:]
    assert [each.name for each in reply.tool_calls] == ["read", "run"]
    assert (first.role, first.text, second.text) == (Role.TOOL, "text of a", "a b")
    assert [first.call_id, second.call_id] == [each.id for each in reply.tool_calls]
    assert asked.stored[0].history == asked.digests[2]
    assert asked.request.tools == (RUN, READ)


@pytest.mark.parametrize("others", [(), (("run", "{}"),)])
def test_a_tool_that_was_not_offered_is_a_format_error_that_the_policy_is_told(
    others: tuple[tuple[str, str], ...],
) -> None:
    agent = ToolAgent()
    call = said("", 0, *others, ("delete", "{}"))
    found = commands_in(agent, call.reply)
    assert isinstance(found, FormatError) and found.num_commands == len(others) + 1
    assert "'delete' was not offered: the tools are run, read" in found.reason
    told = next_request(agent, TASK, Record([call], [])).request.messages[3:]
    assert len(told) == len(others) + 1
    assert all("Nothing was run" in each.text and "'delete'" in each.text for each in told)


def test_no_tool_is_an_error_of_the_agents_own_form() -> None:
    told = next_request(ToolAgent(), TASK, Record([said("done")], [])).request.messages[-1]
    assert (told.role, told.text) == (Role.USER, "call a tool")


FIRST = asking("a")


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ((ModelRequest(messages=()),), "after 0 calls has no messages"),
        ((FIRST, ModelRequest(messages=())), "after 1 calls has no messages"),
        ((None,), "is a NoneType, expected a ModelRequest"),
        (([{"role": "user", "content": "x"}],), "is a list, expected a ModelRequest"),
        ((asking("a", tools=[RUN, RUN]),), "two tools of one name: run, run"),
        ((asking("a", tools=[ToolSpec(name="rm")]),), "'rm', which is not among the agent's tools"),
        # It appends, and this does not begin with what was said.
        ((FIRST, asking("b", "", "c")), "does not begin with the request before it"),
        ((FIRST, FIRST), "does not begin with the request before it"),
        ((FIRST, asking("a", "other", "c")), "does not begin with the request before it"),
        ((FIRST, asking("a", "", "c", tools=[RUN])), "does not begin with the request before it"),
    ],
)
def test_what_no_policy_can_be_asked_is_refused_before_a_rollout(
    requests: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(AgentBroken, match=message) as refused:
        check_asking(Asks(*requests), TASK)
    assert "agent Asks, task t-1" in str(refused.value) and refused.value.remedy


def test_what_appends_at_first_is_refused_where_it_does_not() -> None:
    agent = Asks(FIRST, asking("a", "r0", "b"), asking("a", "r0", "other", "r1", "c"))
    record = Record([said("r0"), said("r1", 1)], [])
    with pytest.raises(AgentBroken, match="after 2 calls does not begin"):
        next_request(agent, TASK, record)


def test_an_agent_that_raises_is_refused_by_name() -> None:
    with pytest.raises(AgentBroken, match="agent Asks, task t-1: IndexError"):
        check_asking(Asks(), TASK)


def test_an_agent_may_rewrite_what_was_said_when_it_tells_so() -> None:
    agent = Asks(FIRST, asking("summary of r0"), asking("summary of r0", "r1", "c"), appends=False)
    check_asking(agent, TASK)
    calls = [said("r0"), said("r1", 1)]
    asked = next_request(agent, TASK, Record(calls, []))
    histories = [each.history for each in asked.stored]
    assert histories[1] == asked.digests[1] and histories[0] not in asked.digests
    assert histories[0] == continued(chain(FIRST)[-1], Reply(text="r0"))


def test_a_chain_is_continued_over_what_both_begin_with() -> None:
    tool = ChatMessage(role=Role.TOOL, text="result", call_id="1")
    calls = (ToolCall(name="run", arguments=json.dumps({"a": 1.0}), id="1"),)
    reply = ChatMessage(role=Role.ASSISTANT, tool_calls=calls)
    short = ModelRequest(messages=(*FIRST.messages, reply), tools=(RUN,))
    long = ModelRequest(messages=(*FIRST.messages, reply, tool), tools=(RUN,))
    other = ModelRequest(messages=(*asking("b").messages, reply, tool), tools=(RUN,))
    bare = ModelRequest(messages=long.messages)
    record = next_request(Asks(short), TASK, Record([], []))
    for request in (short, long, other, bare, FIRST):
        assert chain(request, after=record) == chain(request)
