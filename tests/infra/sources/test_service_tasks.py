"""Tasks are imported from the services that a campaign file names."""

from pathlib import Path

import pytest

from infra.sources.protocol import ImportOptions, RowError
from infra.sources.resolve import open_source
from mainspring.errors import ServiceError, UsageError
from mainspring.tasks.own_task import OwnTask
from tests.gym_services import gym


def file_of(folder: Path, url: str, **fields: object) -> str:
    path = folder / "campaign.toml"
    lines = [f"{name} = {value}" for name, value in fields.items()]
    section = ["[environments.hits]", 'kind = "agentgym"', f'url = "{url}"']
    path.write_text("\n".join(["not_looked_at = 1", *section, *lines]))
    return str(path)


@pytest.mark.parametrize("family", ["textcraft", "sciworld", "alfworld", "sqlgym", "searchqa"])
def test_what_a_service_shows_first_is_the_issue(tmp_path: Path, family: str) -> None:
    with gym(family) as fake:
        fields = {"family": f'"{family}"', "num_tasks": 2, "num_heldout": 1}
        source = open_source(file_of(tmp_path, fake.url, **fields), ImportOptions(name="set"))
        found = [row.result for row in source.rows()]
        assert all(isinstance(task, OwnTask) for task in found)
        tasks = [task for task in found if isinstance(task, OwnTask)]
        assert [(task.id, task.split, task.kind) for task in tasks] == [
            ("hits-0", "train", "hits"),
            ("hits-1", "train", "hits"),
            ("hits-2", "heldout", "hits"),
        ]
        assert [task.data for task in tasks] == [{"data_idx": number} for number in range(3)]
        assert all(f"task {number}: 0 hits" in task.issue for number, task in enumerate(tasks))
        # One world at most is open: where it cannot be closed it is used again.
        assert len(fake.worlds) == (1 if family in ("alfworld", "sqlgym") else 0)


def test_a_number_that_the_service_refuses_is_that_rows_error(tmp_path: Path) -> None:
    with gym("textcraft") as fake:
        fake.spoil = lambda route, answer: (
            {"error": "none"} if route == "/reset" and len(fake.asked) > 3 else answer
        )
        fields = {"family": '"textcraft"', "num_tasks": 2}
        first, second = open_source(file_of(tmp_path, fake.url, **fields), ImportOptions()).rows()
        assert isinstance(first.result, OwnTask) and isinstance(second.result, RowError)
        assert "refuses the task's number 1: none" in second.result.message


def test_a_service_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with gym("textcraft") as fake:
        pass
    source = open_source(file_of(tmp_path, fake.url, family='"textcraft"'), ImportOptions())
    with pytest.raises(ServiceError, match=r"environment hits: POST http://.*/create: no answer"):
        list(source.rows())


def test_a_file_without_services_has_no_tasks(tmp_path: Path) -> None:
    path = tmp_path / "campaign.toml"
    path.write_text('name = "c"\n')
    with pytest.raises(UsageError, match=r"has no section \[environments\.NAME\] of a service"):
        open_source(str(path), ImportOptions())
