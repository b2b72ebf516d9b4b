"""A campaign whose first prompts leave no room for a reply is told so before it is stored."""

from pathlib import Path

import pytest

from bundled.generator import make_tasks
from cli.operations.checks.checklist_item import State
from cli.operations.checks.first_prompts import MAX_LOOKED, prompt_items, spread
from cli.operations.checks.task_items import of_the_tasks
from infra.db.database import Database
from infra.db.tasks import tasks
from infra.policy.model.request_text import RequestText
from infra.policy.model.tokenizer import ChatTokenizer
from infra.policy.protocol import MIN_REPLY_TOKENS
from mainspring.agents.choice import agent_for
from mainspring.agents.record import Record
from mainspring.config.campaign import CampaignConfig
from mainspring.ids import TaskId
from mainspring.tasks.swe_task import SweTask
from tests.infra.policy.tiny_model import save_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


def campaign(model: Path, max_context: int, **sections: object) -> CampaignConfig:
    policy = {"model": str(model), "max_context": max_context, "max_new_tokens": 16}
    given = {"agent": {"kind": "bash"}} | sections
    return CampaignConfig.model_validate({"name": "c", "policy": policy, **given})


def of_sizes(*num_chars: int) -> list[SweTask]:
    [task] = make_tasks(0, "train", 1)
    return [
        task.model_copy(update={"id": TaskId(f"t{n}"), "issue": "x " * (size // 2)})
        for n, size in enumerate(num_chars)
    ]


def num_tokens(model: Path, task: SweTask) -> int:
    request = agent_for(campaign(model, 4096), task).request(task, Record((), ()))
    return len(RequestText(ChatTokenizer(model), plain=True).first_ids(request.messages, ()))


def test_the_bound_is_that_of_a_rollout(model: Path) -> None:
    [task] = of_sizes(100)
    size = num_tokens(model, task)
    assert prompt_items(campaign(model, size + MIN_REPLY_TOKENS), "these", [task]) == []
    [item] = prompt_items(campaign(model, size + MIN_REPLY_TOKENS - 1), "these", [task])
    assert item.state is State.MISSING and f"task t0 has {size} tokens" in item.found
    assert "no prompt of these leaves room" in item.found
    assert f"policy.max_context to {size + 16}" in item.fix


def test_some_that_are_too_long_are_counted(model: Path) -> None:
    short, long, longest = of_sizes(100, 2000, 3000)
    room = num_tokens(model, short) + 100
    [item] = prompt_items(campaign(model, room), "these", [short, long, longest])
    assert item.state is State.WARNING and "2 of 3 of these" in item.found
    assert f"task t2 has {num_tokens(model, longest)} tokens" in item.found


def test_what_is_certainly_short_or_wrong_otherwise_is_not_told(model: Path, tmp_path) -> None:
    [task] = of_sizes(100)
    assert prompt_items(campaign(tmp_path / "missing", 64), "these", [task]) == []
    assert prompt_items(campaign(tmp_path / "missing", 30_000), "these", [task]) == []
    assert prompt_items(campaign(model, 64, agent={"kind": "nowhere"}), "these", [task]) == []
    program = {"kind": "mini-swe-agent"}
    assert prompt_items(campaign(model, 64, agent=program), "these", [task]) == []


async def test_stored_tasks_are_looked_at(db: Database, model: Path) -> None:
    rows = [
        task.model_copy(update={"source": "own", "split": "train"}) for task in of_sizes(100, 3000)
    ]
    await tasks.put_tasks(db, rows)
    own = {"tasks": {"source": "own", "unverified": "use"}, "evaluation": {"splits": []}}
    room = num_tokens(model, rows[0]) + 100
    [item] = [each for each in await of_the_tasks(campaign(model, room, **own), db) if each.fix]
    assert item.state is State.WARNING and "1 of 2 of the tasks of own, split train" in item.found


def test_a_large_set_is_looked_at_from_end_to_end() -> None:
    ids = [TaskId(f"t{n}") for n in range(1000)]
    looked = spread(ids)
    assert len(set(looked)) == MAX_LOOKED and looked[0] == "t0"
    assert ids.index(looked[-1]) >= 980 and spread(ids[:5]) == ids[:5]
