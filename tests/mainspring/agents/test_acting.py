"""Agents in environments that are no repository: their texts, actions and observations."""

import pytest

from mainspring.agents.choice import check_agent
from mainspring.agents.protocol import Command, FormatError
from mainspring.agents.react import ReactAgent
from mainspring.agents.record import Record
from mainspring.agents.tool_calls import ToolsAgent
from mainspring.config.agents.agent import AgentConfig, ReactConfig
from mainspring.config.agents.prompts import PromptsConfig
from mainspring.errors import ConfigError
from mainspring.ids import TaskId
from mainspring.programs.reply import Reply
from mainspring.programs.request import ToolCall
from mainspring.tasks.own_task import OwnTask
from mainspring.trajectories.turns import Call, Execution

TASK = OwnTask(id=TaskId("t"), kind="rooms", source="s", split="train", issue="You are in room 1.")
BARE = AgentConfig(kind="react", tools=("act",), react=ReactConfig(action_input=""))
NAMED = AgentConfig(kind="react", tools=("act",))


def shown(agent: ReactAgent | ToolsAgent, *texts: str) -> list[str]:
    return [message.text for message in agent.request(TASK, record(*texts)).messages]


def record(*outputs: str, reward: float | None = 0.0) -> Record:
    calls = [
        Call(number, None, 0, (), (), (), (), "Thought: x\nAction: go", "stop")
        for number in range(len(outputs))
    ]
    ran = [
        Execution(number, 0, "go", 0, output.encode(), False, False, 0.1, reward)
        for number, output in enumerate(outputs)
    ]
    return Record(calls, ran)


@pytest.mark.parametrize(
    ("config", "text", "command"),
    [
        (BARE, "Thought: x\nAction: go left", "go left"),
        (BARE, "Thought:\nx\n\nAction:\ngo left\n", "go left"),
        (BARE, "Action: take the key (it is { here )", "take the key (it is { here )"),
        (NAMED, "Thought: x\nAction: act\nAction Input: go left", "go left"),
        (NAMED, 'Action: act\nAction Input: {"action": "go left"}', "go left"),
    ],
)
def test_an_action_is_read(config: AgentConfig, text: str, command: str) -> None:
    assert ReactAgent(config).parse(Reply(text=text)) == (Command(command),)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("Thought: x", FormatError(0)),
        ("Action: go left\nAction: go right", FormatError(2)),
        ("Action:", FormatError(1, "act: action: '' should be non-empty")),
    ],
)
def test_what_is_no_action_is_told(text: str, error: FormatError) -> None:
    assert ReactAgent(BARE).parse(Reply(text=text)) == error


def test_the_first_texts_are_those_of_no_repository() -> None:
    system, task = shown(ReactAgent(BARE))
    assert "the action, as the environment takes it" in system and "Action Input" not in system
    assert "engineer" not in system and task == "You are in room 1."
    system, _ = shown(ReactAgent(NAMED))
    assert "- act: Take one action in the environment. It takes the action as it is." in system
    system, task = shown(ToolsAgent(AgentConfig(kind="tools", tools=("act",))))
    assert system.startswith("You act in an environment") and task == "You are in room 1."


def test_the_rules_of_a_game_stand_in_the_prompts() -> None:
    prompts = PromptsConfig(system="Go {{ tags.action }}", task="Begin: {{ issue }}")
    agent = ReactAgent(BARE.model_copy(update={"prompts": prompts}))
    assert shown(agent) == ["Go Action:", "Begin: You are in room 1."]


def test_an_observation_is_what_the_environment_answered() -> None:
    assert shown(ReactAgent(BARE), " a\n  b\n\n", "")[3::2] == [" a\n  b", "(nothing)"]
    long = shown(ReactAgent(BARE), "x" * 20_000 + "\n")[3]
    assert "[10001 characters are left out]" in long and len(long) < 10_100
    # A step without a reward is a command of a shell.
    agent = ReactAgent(BARE)
    request = agent.request(TASK, record("out", reward=None))
    assert request.messages[3].text.startswith("<returncode>0</returncode>\n<output>\nout\n")


def test_a_call_of_the_tools_agent_is_an_action() -> None:
    agent = ToolsAgent(AgentConfig(kind="tools", tools=("act",)))
    call = ToolCall(name="act", arguments='{"action": " go left "}')
    assert agent.parse(Reply(text="", tool_calls=(call,))) == (Command("go left"),)


def test_an_input_without_a_tag_needs_one_tool() -> None:
    config = BARE.model_copy(update={"tools": ("act", "bash")})
    with pytest.raises(ConfigError, match=r"action_input = \"\" puts .* names act, bash"):
        check_agent(config)
