"""Tasks that are answered: who can play them, and how a stored answer is graded."""

from typing import Any

import pytest
from worlds_of_services import place_of

from infra.environments.answer import AnswerEnvironment
from infra.environments.hosted import Environments
from infra.environments.own import OwnEnvironment
from infra.sandbox.backends import Backends
from mainspring.config.files.reading import check_campaign
from mainspring.environments.choice import check_world
from mainspring.errors import ConfigError
from mainspring.ids import TaskId
from mainspring.programs.functions import returned
from mainspring.status import Verdict
from mainspring.tasks.answer import SCORED_ANSWER
from mainspring.tasks.own_task import OwnTask

TASK = OwnTask(
    id=TaskId("sum"),
    kind="answer",
    source="s",
    split="train",
    issue="1 + 1?",
    data={"answers": ["2", "two"]},
)
SINGLE = {"kind": "single", "single": "text"}


def config_of(**fields: Any) -> Any:
    return check_campaign({"name": "c", "policy": {"model": "/m"}, **fields}, "c.toml")


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ("#### 2", Verdict.RESOLVED),
        ("Answer: Two", Verdict.RESOLVED),
        (r"\boxed{3}", Verdict.NOT_RESOLVED),
        ("2 or 3", Verdict.NOT_RESOLVED),
    ],
)
async def test_a_world_takes_one_answer_and_ends(said: str, verdict: Verdict) -> None:
    environment = OwnEnvironment("answer", AnswerEnvironment(None))
    world = await environment.open(TASK, place_of())
    assert (await world.finish()).result == b""
    step = await world.step("a", said, 5.0)
    assert step.is_over and step.returncode == 0
    finished = await world.finish()
    judged = await environment.grade(TASK, finished.result, place_of())
    assert (judged.verdict, judged.report.score) == (verdict, float(verdict is Verdict.RESOLVED))
    assert "accepted: '2', 'two'" in judged.output
    await world.close()


def test_a_node_makes_it_without_a_section() -> None:
    hosted = Environments(Backends({})).of(config_of(agent=SINGLE), TASK)
    assert isinstance(hosted, OwnEnvironment)
    check_world(config_of(agent=SINGLE), TASK)


@pytest.mark.parametrize(
    ("changed", "agent", "said"),
    [
        ({"data": {}}, SINGLE, r"task sum of the kind 'answer': data\.answers must be a list"),
        ({}, {"kind": "tools", "tools": ["bash", "act"]}, "answered without a sandbox, and agent"),
        ({}, {"kind": "claude-code"}, "the program 'claude-code' needs a sandbox"),
        ({"kind": SCORED_ANSWER}, SINGLE, "no environment is named for tasks of the kind 'scored"),
    ],
)
def test_what_could_not_be_played_or_graded_is_refused(
    changed: dict[str, Any], agent: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        check_world(config_of(agent=agent), TASK.model_copy(update=changed))


@pytest.mark.parametrize(
    ("value", "verdict"),
    [("#### 2", Verdict.RESOLVED), (2.0, Verdict.RESOLVED), (3, Verdict.NOT_RESOLVED)],
)
async def test_what_a_function_returns_is_the_answer(value: object, verdict: Verdict) -> None:
    stored = returned(value).data
    judged = await AnswerEnvironment(None).grade(TASK, stored, place_of())
    assert judged.verdict is verdict, judged
