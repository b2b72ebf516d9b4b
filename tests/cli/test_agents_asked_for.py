"""A task that asks for an agent (`agent_name`) is played by that one, or its run is refused."""

import uuid
from pathlib import Path

import pytest

from cli.operations.checks.checklist_item import State
from cli.operations.checks.sandboxes_here import backends_here
from cli.operations.checks.task_checks import check_tasks
from cli.operations.checks.task_items import of_the_tasks
from cli.operations.machine.embedded_stack import StackInfo
from cli.operations.runs import campaign_launch as launch
from infra.bundles.store import BundleMissing
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from mainspring.agents.bash import BashAgent
from mainspring.agents.record import Record
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.tasks import TasksConfig
from mainspring.errors import UsageError
from mainspring.ids import CampaignId, TaskId
from mainspring.programs.request import ChatMessage, ModelRequest, Role
from mainspring.status import Unverified
from mainspring.tasks.swe_task import SweTask
from mainspring.tasks.task import Task

COMMAND = {"kind": "command", "options": {"command": "true"}}
OUTSIDE = {"kind": "remote"}
FUNCTION = {"kind": "function", "options": {"function": f"{__name__}:solve"}}


async def solve(task: object) -> None: ...


def task_of(name: str, agent: str | None) -> SweTask:
    return SweTask(
        id=TaskId(name),
        source=name,
        split="train",
        issue="x",
        files={"a": ""},
        test_command="true",
        agent_name=agent,
    )


def fields(name: str, agent: dict[str, object]) -> dict[str, object]:
    return {
        "name": name,
        "tasks": TasksConfig(source=name, unverified=Unverified.USE),
        "agent": AgentConfig.model_validate(agent),
    }


@pytest.mark.parametrize(
    ("asked", "agent"),
    [
        (None, {}),
        ("", {}),
        ("bash", {}),
        ("bundled", {}),
        ("bash", {"kind": "bundled"}),
        # A default that was not chosen asks for nothing.
        (None, {"kind": "codex"}),
        ("", COMMAND),
        # What plays it is what it asks for.
        ("codex", {"kind": "codex"}),
        # Whatever [agent] is.
        ("bash", {"kind": "codex"}),
        ("bundled", COMMAND),
        ("bash", OUTSIDE),
        ("codex", {}),
        ("codex", COMMAND),
        ("remote", {}),
        # Chosen otherwise, and the file tells it.
        ("bash", {"kind": "codex", "override": True}),
        ("mini", {"override": True}),
    ],
)
async def test_a_task_is_played_by_the_agent_that_it_asks_for(
    stack: StackInfo, asked: str | None, agent: dict[str, object]
) -> None:
    name = f"agent-{uuid.uuid4().hex[:8]}"
    policy = PolicyConfig(model="scripted")
    config = EvaluationConfig.model_validate(
        {**fields(name, agent), "policy": policy, "split": "train"}
    )
    async with Database.open(stack.database_url) as db:
        await tasks.put_tasks(db, [task_of(name, asked)])
        await launch.create(db, config)
        assert await campaigns.find(db, CampaignId(name)) is not None


@pytest.mark.parametrize(
    ("asked", "agent", "message", "remedy"),
    [
        ("mini", {}, "'mini' (agent_name), which does not exist", "bash, bundled"),
        ("mini", {"kind": "codex"}, "which does not exist", "agent.override = true"),
        ("command", {}, 'agents.command.kind = "command" has no command', "[agents.command]"),
        ("function", COMMAND, 'agents.function.kind = "function"', "agent.override = true"),
        ("claude-code", {}, "policy.max_context = 32768 is too small for 'claude-code'", "raise"),
    ],
)
async def test_another_agent_is_refused_before_anything_is_stored(
    stack: StackInfo, asked: str, agent: dict[str, object], message: str, remedy: str
) -> None:
    name = f"agent-{uuid.uuid4().hex[:8]}"
    policy = PolicyConfig(model="scripted")
    config = EvaluationConfig.model_validate(
        {**fields(name, agent), "policy": policy, "split": "train"}
    )
    async with Database.open(stack.database_url) as db:
        await tasks.put_tasks(db, [task_of(name, asked)])
        with pytest.raises(UsageError) as refused:
            await launch.create(db, config)
        assert f"task {name} asks for the agent" in refused.value.message
        assert message in refused.value.message and remedy in refused.value.remedy
        assert await campaigns.find(db, CampaignId(name)) is None
        evaluates = {"splits": ["train"]}
        campaign = CampaignConfig.model_validate(
            {**fields(name, agent), "policy": {"model": "/m"}, "evaluation": evaluates}
        )
        [found] = [each for each in await of_the_tasks(campaign, db) if each.state is State.MISSING]
        assert found.what == "agent" and message in found.found


@pytest.mark.parametrize(
    ("agent", "tools", "message"),
    [
        ({"kind": "tools"}, ("view", "fly"), "asks for the tool 'fly'"),
        ({"kind": "tools"}, ("view", "view"), "two tools are called 'view'"),
        ({}, ("view",), "the agent 'bash' offers none"),
        (COMMAND, ("view",), "the agent 'command' offers none"),
    ],
)
async def test_tools_that_cannot_be_had_are_refused_before_anything_is_stored(
    stack: StackInfo, agent: dict[str, object], tools: tuple[str, ...], message: str
) -> None:
    name = f"tools-{uuid.uuid4().hex[:8]}"
    policy = PolicyConfig(model="scripted")
    config = EvaluationConfig.model_validate(
        {**fields(name, agent), "policy": policy, "split": "train"}
    )
    plain = task_of(name, None)
    async with Database.open(stack.database_url) as db:
        other = plain.model_copy(update={"id": TaskId(f"{name}-2"), "tools": tools})
        await tasks.put_tasks(db, [plain, other])
        with pytest.raises(UsageError) as refused:
            await launch.create(db, config)
        assert message in refused.value.message and refused.value.remedy
        assert await campaigns.find(db, CampaignId(name)) is None


@pytest.mark.parametrize(
    ("fields_of_run", "message"),
    [
        (
            {"schedule": "reproducible", "trainer": {"device": "cpu"}},
            'schedule = "reproducible" needs agents.codex.kind = an agent such as',
        ),
        (
            {
                "judges": {"q": {"model": "m", "url": "http://j/v1", "prompt": "{{ turn }}"}},
                "reward": {"parts": [{"name": "judge", "judge": "q", "of": "turns"}]},
            },
            'of = "turns" needs agents whose turns Mainspring takes, and agents.codex.kind',
        ),
    ],
)
async def test_a_program_that_a_row_asks_for_by_its_kind_is_refused_where_a_section_would_be(
    stack: StackInfo, fields_of_run: dict[str, object], message: str
) -> None:
    name = f"agent-{uuid.uuid4().hex[:8]}"
    config = CampaignConfig.model_validate(
        {**fields(name, {}), "policy": {"model": "/m"}, **fields_of_run}
    )
    async with Database.open(stack.database_url) as db:
        await tasks.put_tasks(db, [task_of(name, "codex")])
        with pytest.raises(UsageError) as refused:
            await check_tasks(db, config, [TaskId(name)])
        assert message in refused.value.message
        assert f"task {name} asks for the agent 'codex'" in refused.value.message
        assert "agent.override = true" in refused.value.remedy
        override = config.model_copy(update={"agent": AgentConfig(override=True)})
        await check_tasks(db, override, [TaskId(name)])


@pytest.mark.parametrize(
    ("asked", "agents"), [("codex", {}), ("coder", {"coder": {"kind": "codex"}})]
)
async def test_a_client_that_is_not_installed_is_missed_before_the_run_is_stored(
    stack: StackInfo,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: str,
    agents: dict[str, object],
) -> None:
    monkeypatch.setenv("MAINSPRING_AGENTS_DIR", str(tmp_path))
    name = f"agent-{uuid.uuid4().hex[:8]}"
    config = EvaluationConfig.model_validate(
        {
            **fields(name, {}),
            "policy": PolicyConfig(model="scripted"),
            "split": "train",
            "agents": agents,
        }
    )
    async with Database.open(stack.database_url) as db:
        await tasks.put_tasks(db, [task_of(name, asked)])
        with pytest.raises(BundleMissing, match="bundle codex-"):
            await launch.create(db, config, here=await backends_here())
        assert await campaigns.find(db, CampaignId(name)) is None


class Rewriting(BashAgent):
    """Declares that it appends."""

    def request(self, task: Task, record: Record) -> ModelRequest:
        told = f"{task.issue} {len(record.calls)}"
        return ModelRequest(messages=(ChatMessage(role=Role.USER, text=told),))


class Silent(BashAgent):
    def request(self, task: Task, record: Record) -> ModelRequest:
        return ModelRequest(messages=())


@pytest.mark.parametrize(
    ("kind", "message"),
    [("Rewriting", "does not begin with the request before it"), ("Silent", "has no messages")],
)
async def test_an_agent_that_asks_what_it_may_not_is_refused_before_the_run_is_stored(
    stack: StackInfo, kind: str, message: str
) -> None:
    name = f"agent-{uuid.uuid4().hex[:8]}"
    policy = PolicyConfig(model="scripted")
    agent: dict[str, object] = {"kind": f"{__name__}:{kind}"}
    config = EvaluationConfig.model_validate(
        {**fields(name, agent), "policy": policy, "split": "train"}
    )
    async with Database.open(stack.database_url) as db:
        await tasks.put_tasks(db, [task_of(name, None)])
        with pytest.raises(UsageError, match=f"agent {kind}, task {name}.*{message}") as refused:
            await launch.create(db, config)
        assert refused.value.remedy
        assert await campaigns.find(db, CampaignId(name)) is None
