"""An agent is found by name or path, and refused with what is wrong about it."""

import pytest

from mainspring.agents.bash import BashAgent
from mainspring.agents.bundled import BundledAgent
from mainspring.agents.choice import (
    agent_config,
    agent_for,
    allowed,
    check_agent,
    check_agents,
    check_contexts,
    name_of_agent,
    narrow_contexts,
    outside_agent,
    with_asked,
)
from mainspring.agents.conversation import ConversationAgent
from mainspring.agents.program import ProgramAgent
from mainspring.agents.protocol import FormatError
from mainspring.agents.record import Record
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.agents.prompts import PromptsConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.run import RunConfig
from mainspring.errors import ConfigError
from mainspring.ids import TaskId
from mainspring.tasks.swe_task import SweTask

HERE = __name__
EMPTY = Record((), ())
TASK = SweTask(
    id=TaskId("t"), source="s", split="train", issue="i", files={"a": ""}, test_command="true"
)


class Own(BashAgent):
    pass


class Silent:
    def opening(self, task: SweTask) -> None: ...

    def parse(self, reply: str) -> None: ...


class TakesText(BashAgent):
    def parse(self, reply: str) -> FormatError:  # type: ignore[override]
        return FormatError(len(reply))


class Undeclared:
    def __init__(self, config: AgentConfig) -> None: ...

    def request(self, task: object, record: object) -> None: ...

    def parse(self, reply: object) -> None: ...

    def is_done(self, execution: object) -> None: ...


class HalfConversation(ConversationAgent):
    def __init__(self, config: AgentConfig) -> None: ...


class Broken(BashAgent):
    def __init__(self) -> None: ...


not_a_class = 3


def run(agent: AgentConfig | None = None, **agents: object) -> RunConfig:
    return RunConfig.model_validate(
        {"name": "r", "agent": agent or AgentConfig(), "agents": agents}
    )


def asking(name: str) -> SweTask:
    return TASK.model_copy(update={"agent_name": name})


def test_the_campaign_names_it_and_a_task_comes_first() -> None:
    assert type(agent_for(run(), TASK)) is BashAgent
    assert type(agent_for(run(AgentConfig(kind="bundled")), TASK)) is BundledAgent
    own = AgentConfig(kind=f"{HERE}:Own")
    check_agent(own)
    assert type(agent_for(run(own), TASK)) is Own
    assert type(agent_for(run(own), asking("bash"))) is BashAgent
    override = AgentConfig(kind=f"{HERE}:Own", override=True)
    assert type(agent_for(run(override), asking("bash"))) is Own


def test_a_task_never_names_a_path() -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        agent_for(run(), asking(f"{HERE}:Own"))


def test_a_task_may_name_a_section_of_the_run() -> None:
    given = run(
        AgentConfig(step_limit=7, command_timeout_s=5),
        short={"kind": "bundled", "step_limit": 3},
        own={"kind": f"{HERE}:Own"},
    )
    check_agents(given)
    assert type(agent_for(given, asking("short"))) is BundledAgent
    assert type(agent_for(given, asking("own"))) is Own
    assert agent_config(given, asking("short")).step_limit == 3
    assert agent_config(given, asking("own")).step_limit == 7  # as in [agent]
    assert agent_config(given, asking("short")).command_timeout_s == 5
    assert agent_config(given, TASK) is given.agent
    assert allowed(given)[:2] == ("short", "own")
    stored = RunConfig.model_validate(given.model_dump(mode="json"))
    assert stored == given


def with_tools(*names: str, agent: str | None = None) -> SweTask:
    return TASK.model_copy(update={"tools": names, "agent_name": agent})


def test_a_task_may_name_its_tools() -> None:
    own = "tests.mainspring.agents.test_tools:Count"
    given = run(
        AgentConfig(kind="tools", tools=("bash", own)), stepping={"kind": "react", "step_limit": 3}
    )
    assert agent_config(given, with_tools("view", own)).tools == ("view", own)
    stepping = agent_config(given, with_tools("view", own, agent="stepping"))
    assert (stepping.kind, stepping.step_limit, stepping.tools) == ("react", 3, ("view", own))
    names = [tool.name for tool in agent_for(given, with_tools("view", own)).tools]
    assert names == ["view", "count"]
    assert agent_config(given, TASK) is given.agent
    override = run(AgentConfig(kind="tools", override=True))
    assert agent_config(override, with_tools("view")) is override.agent


@pytest.mark.parametrize(
    ("agent", "names", "message"),
    [
        ({"kind": "tools"}, ("fly",), "asks for the tool 'fly', which the configuration does not"),
        # A row is data: its paths are not imported.
        ({"kind": "tools"}, (f"{HERE}:Own",), f"asks for the tool '{HERE}:Own', which the conf"),
        ({}, ("view",), "asks for the tools view, and the agent 'bash' offers none"),
        ({"kind": "single"}, ("view", "bash"), "the tools view, bash, and the agent 'single'"),
        ({"kind": "codex"}, ("view",), "and the agent 'codex' offers none of Mainspring's"),
    ],
)
def test_tools_that_a_task_cannot_have_are_refused(
    agent: dict[str, object], names: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        agent_config(run(AgentConfig.model_validate(agent)), with_tools(*names))
    assert message in refused.value.message and refused.value.remedy


def test_the_texts_of_one_agent_are_not_those_of_another() -> None:
    given = run(AgentConfig(prompts=PromptsConfig(system="Mine.")))
    assert agent_for(given, TASK).request(TASK, EMPTY).messages[0].text == "Mine."
    other = agent_for(given, asking("bundled")).request(TASK, EMPTY).messages[0].text
    assert other == "Fix the bug. Write a THOUGHT and one bash block."


CODER = {"kind": "command", "options": {"command": "play"}, "step_limit": 9}


def test_programs_and_agents_play_in_one_run() -> None:
    given = run(AgentConfig(command_timeout_s=5), coder=CODER)
    check_agents(given)
    coder = agent_config(given, asking("coder"))
    assert (coder.kind, coder.step_limit, coder.command_timeout_s) == ("command", 9, 5)
    assert type(agent_for(given, asking("coder"))) is ProgramAgent
    assert type(agent_for(given, TASK)) is BashAgent
    assert name_of_agent(given, asking("coder")) == "coder"
    # A program in [agent] is no reason to play every task with it.
    other = run(AgentConfig.model_validate(CODER), short={"kind": "bundled"})
    check_agents(other)
    assert type(agent_for(other, asking("short"))) is BundledAgent
    assert type(agent_for(other, asking("bash"))) is BashAgent
    assert agent_config(other, asking("command")) is agent_config(other, TASK) is other.agent
    override = run(AgentConfig(override=True), coder=CODER)
    assert agent_config(override, asking("coder")) is override.agent
    assert name_of_agent(override, asking("coder")) == "bash"
    assert [*override.agent_sections] == ["agent"]


def test_a_program_without_a_section_has_the_limits_of_the_run_and_no_one_elses_options() -> None:
    given = run(AgentConfig.model_validate(CODER | {"version": "1", "requests_per_minute": 7}))
    codex = agent_config(given, asking("codex"))
    assert (codex.kind, codex.options, codex.version) == ("codex", {}, None)
    assert (codex.step_limit, codex.requests_per_minute) == (9, 7)
    whole = with_asked(given, ["codex", "command", "bash"])
    assert [*whole.agent_sections] == ["agent", "agents.codex", "agents.bash"]
    assert with_asked(given, ["command"]) is given


def test_the_one_agent_outside_is_found_wherever_it_stands() -> None:
    outside = {"kind": "remote", "options": {"lives": 2}}
    assert outside_agent(run(outside=outside)) == AgentConfig.model_validate(outside)
    asked = outside_agent(run(AgentConfig(step_limit=4)))  # rows may ask for it by its kind
    assert asked is not None and (asked.kind, asked.step_limit) == ("remote", 4)
    assert outside_agent(run(AgentConfig(override=True), outside=outside)) is None
    with pytest.raises(ConfigError, match=r"agents\.outside\] and \[agents\.remote\] are both"):
        check_agents(with_asked(run(outside=outside), ["remote"]))


def test_the_limits_of_a_client_are_told_of_its_section() -> None:
    given = run(coder={"kind": "claude-code"}).model_copy(
        update={"policy": PolicyConfig(model="m", max_context=16_384)}
    )
    with pytest.raises(ConfigError, match="too small for 'claude-code'") as refused:
        check_contexts(given)
    assert "agents.coder.options.tools" in refused.value.remedy
    [(told, remedy)] = narrow_contexts(given)
    assert "claude-code" in told and "agents.coder.options.tools" in remedy


@pytest.mark.parametrize(
    ("agent", "agents", "message"),
    [
        ({}, {"bash": {"kind": "bundled"}}, "'bash' is an agent of Mainspring"),
        ({}, {"codex": {"kind": "bash"}}, "'codex' is an agent of Mainspring"),
        ({}, {"claude-code": {"kind": "codex"}}, "'claude-code' is an agent of Mainspring"),
        (
            {},
            {"coder": {"kind": "codex", "options": {"modell": "x"}}},
            r"agents\.coder\.options of 'codex' has no modell",
        ),
        ({}, {"own": {"kind": "command"}}, r'agents\.own\.kind = "command" has no command'),
        (
            {"kind": "remote"},
            {"out": {"kind": "remote", "options": {"lives": 2}}},
            r"\[agent\] and \[agents\.out\] are both of the kind 'remote'",
        ),
        ({}, {"b": {"kind": "nowhere"}}, "no agent is called 'nowhere'"),
        ({}, {"b": {"tool_parser": "none"}}, "tool_parser = 'none', and agent.tool_parser"),
        ({}, {"b": {"prompts": {"task": "{{ isue }}"}}}, "agents.b.prompts.task uses 'isue'"),
    ],
)
def test_a_section_that_cannot_play_is_refused(agent: dict, agents: dict, message: str) -> None:
    given = RunConfig.model_validate({"name": "r", "agent": agent, "agents": agents})
    with pytest.raises(ConfigError, match=message) as refused:
        check_agents(given)
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("codx", "no agent is called 'codx'"),
        ("nowhere_at_all:Agent", "cannot be imported: ModuleNotFoundError"),
        (f"{HERE}:Absent", "cannot be imported: AttributeError"),
        (f"{HERE}:not_a_class", "is a int, expected a class"),
        (f"{HERE}:Broken", "cannot be made: TypeError"),
        (f"{HERE}:TakesText", "its `parse` takes a str, expected a Reply"),
        (f"{HERE}:Undeclared", "lacks appends, tools"),
        (f"{HERE}:HalfConversation", "cannot be made: TypeError.*abstract"),
        (f"{HERE}:Silent", "lacks request, is_done"),
    ],
)
def test_what_is_no_agent_is_refused(kind: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        check_agent(AgentConfig(kind=kind))
    assert refused.value.remedy
