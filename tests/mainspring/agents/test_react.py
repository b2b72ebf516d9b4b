"""The react agent reads one step a reply, under tags that are fields, and may forget old ones."""

import pytest

from mainspring.agents.asking import next_request
from mainspring.agents.choice import check_agent
from mainspring.agents.protocol import Command, FormatError
from mainspring.agents.react import ReactAgent
from mainspring.agents.record import Record
from mainspring.config.agents.agent import AgentConfig, ReactConfig
from mainspring.ids import TaskId
from mainspring.programs.reply import Reply
from mainspring.tasks.swe_task import SweTask
from mainspring.trajectories.turns import Call, Execution

TASK = SweTask(
    id=TaskId("t"), source="s", split="train", issue="i", files={"a": ""}, test_command="true"
)
AGENT = ReactAgent(AgentConfig(kind="react"))


def step(command: str, summary: str = "") -> str:
    noted = f"Summary: {summary}\n" if summary else ""
    return f"Thought: because\n{noted}Action: bash\nAction Input: {command}"


def record(*texts: str) -> Record:
    calls = [
        Call(number, None, 0, (), (), (), (), text, "stop") for number, text in enumerate(texts)
    ]
    ran = [
        Execution(number, 0, "", 0, f"out {number}\n".encode(), False, False, 0.1)
        for number in range(len(texts))
    ]
    return Record(calls, ran)


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("Thought: x\nAction: bash\nAction Input: ls -la", "ls -la"),
        ("Action: bash\nAction Input:\ncat <<'E'\na\n\nE\n", "cat <<'E'\na\n\nE"),
        ('Action: bash\nAction Input: {"command": "ls"}', "ls"),
        ("Action: bash\nAction Input: { echo; }", "{ echo; }"),
        ("  Action:  bash \n  Action Input:  ls", "ls"),
        ("<think>Action: view</think>Action: bash\nAction Input: ls", "ls"),
        ("I say Action: nothing.\nAction: bash\nAction Input: ls", "ls"),
        ("Action: submit", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
        ("Action: submit\nAction Input:", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
        ("Action: submit\nAction Input: {}", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
    ],
)
def test_a_step_is_read(text: str, command: str) -> None:
    assert AGENT.parse(Reply(text=text)) == (Command(command),)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", FormatError(0)),
        ("Thought: nothing to do", FormatError(0)),
        (f"{step('a')}\n{step('b')}", FormatError(2)),
        ("Action: fly\nAction Input: up", FormatError(1, "there is no action 'fly': they are")),
        ("Action: bash", FormatError(1, "bash: command: '' ")),
        ("Action: edit\nAction Input: a", FormatError(1, "the arguments of edit are no JSON")),
        ('Action: edit\nAction Input: {"path": "a"}', FormatError(1, "edit: 'old' is a required")),
    ],
)
def test_what_is_no_step_is_told(text: str, error: FormatError) -> None:
    parsed = AGENT.parse(Reply(text=text))
    assert isinstance(parsed, FormatError) and parsed.num_commands == error.num_commands
    assert parsed.reason.startswith(error.reason)
    call = Call(0, None, 0, (), (), (), (), text, "stop")
    assert (parsed.reason or f"{parsed.num_commands} actions") in AGENT.after(call, [])


def test_the_opening_shows_the_form_and_the_actions() -> None:
    system = AGENT.opening(TASK)[0]["content"]
    assert "Thought: what you know" in system and "\nAction Input: what it takes\n" in system
    assert "- bash: Run a bash command" in system and "It takes the command as it is." in system
    assert "- submit:" in system and "It takes nothing." in system and "Summary" not in system


def test_tags_are_fields() -> None:
    tags = ReactConfig(thought="<why>", action="<do>", action_input="<with>")
    agent = ReactAgent(AgentConfig(kind="react", react=tags))
    assert agent.parse(Reply(text="<why> x\n<do> bash\n<with> ls")) == (Command("ls"),)
    assert "<why> what you know" in agent.opening(TASK)[0]["content"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"action": "Thought:"}, "two tags are the same"),
        ({"action": " Act:"}, "a tag is one line without blanks around it"),
        ({"action": ""}, "at least 1 character"),
        ({"summary": "Summary:"}, "summary needs memory"),
        ({"memory": 0}, "greater than or equal to 1"),
    ],
)
def test_tags_that_cannot_be_read_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReactConfig.model_validate(fields)


def test_without_memory_each_request_extends_the_one_before() -> None:
    check_agent(AgentConfig(kind="react"))
    done = record(step("a"), step("b"))
    asked = next_request(AGENT, TASK, done).request
    assert [message.text for message in asked.messages[2:]] == [
        step("a"),
        AGENT.after(done.calls[0], done.executions[:1]),
        step("b"),
        AGENT.after(done.calls[1], done.executions[1:]),
    ]


def test_memory_shows_the_last_steps_and_the_newest_summary() -> None:
    react = ReactConfig(memory=2, summary="Summary:")
    agent = ReactAgent(AgentConfig(kind="react", react=react))
    texts = (step("a", "first"), step("b", "second"), step("c"), step("d", "fourth"))
    whole = next_request(agent, TASK, record(*texts[:2])).request
    assert len(whole.messages) == 6
    asked = next_request(agent, TASK, record(*texts)).request
    assert [message.role.value for message in asked.messages] == [
        *("system", "user", "assistant", "user", "assistant", "user"),
    ]
    assert asked.messages[1].text.endswith("\n\nSummary of your first 2 steps:\nsecond")
    assert [message.text for message in asked.messages[2::2]] == [*texts[2:]]
    plain = ReactAgent(AgentConfig(kind="react", react=ReactConfig(memory=1)))
    asked = next_request(plain, TASK, record(*texts)).request
    assert asked.messages[1].text.endswith("\n\n3 earlier steps are left out.")


@pytest.mark.parametrize("memory", [1, 2, 3])
def test_the_same_record_gives_the_same_request(memory: int) -> None:
    agent = ReactAgent(AgentConfig(kind="react", react=ReactConfig(memory=memory)))
    texts = [step(str(number)) for number in range(6)]
    newest = None
    for number in range(len(texts) + 1):
        done = record(*texts[:number])
        newest = next_request(agent, TASK, done, newest)
        assert newest.request == next_request(agent, TASK, done).request
