"""An agent is found by name or path, and refused with what is wrong about it."""

import pytest

from mainspring.agents.bash import BashAgent
from mainspring.agents.bundled import BundledAgent
from mainspring.agents.choice import agent_for, check_agent
from mainspring.agents.conversation import ConversationAgent
from mainspring.agents.protocol import FormatError
from mainspring.config.agent import AgentConfig
from mainspring.errors import ConfigError
from mainspring.ids import TaskId
from mainspring.tasks.swe_task import SweTask

HERE = __name__
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


def test_the_campaign_names_it_and_a_task_comes_first() -> None:
    assert type(agent_for(AgentConfig(), TASK)) is BashAgent
    assert type(agent_for(AgentConfig(kind="bundled"), TASK)) is BundledAgent
    own = AgentConfig(kind=f"{HERE}:Own")
    check_agent(own)
    assert type(agent_for(own, TASK)) is Own
    asking = TASK.model_copy(update={"agent_name": "bash"})
    assert type(agent_for(own, asking)) is BashAgent
    override = AgentConfig(kind=f"{HERE}:Own", override=True)
    assert type(agent_for(override, asking)) is Own


def test_a_task_never_names_a_path() -> None:
    asking = TASK.model_copy(update={"agent_name": f"{HERE}:Own"})
    with pytest.raises(ConfigError, match="does not exist"):
        agent_for(AgentConfig(), asking)


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
