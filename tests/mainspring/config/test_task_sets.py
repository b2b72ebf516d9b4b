"""[[tasks]]: several sets that a campaign trains on, what they mean and what is refused."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.regrade import RegradeConfig
from mainspring.config.files import errors
from mainspring.config.files.changes import counts_of, differences, given
from mainspring.config.files.layers import Overrides
from mainspring.config.files.reading import load_campaign
from mainspring.config.run import RunConfig
from mainspring.config.section import STORED
from mainspring.config.tasks import TaskSet
from mainspring.errors import ConfigError
from mainspring.protocol.campaign import plan_of
from mainspring.status import Unverified

FILE = """
name = "two"

[policy]
model = "/models/some"

[agents.long]
kind = "tools"

[[tasks]]
source = "org/bugs"
weight = 3

[[tasks]]
source = "games"
split = "levels"
agent = "long"
unverified = "use"
limit = 20

[[evaluation.sources]]
source = "org/bugs"
split = "dev"
"""


def written(tmp_path: Path, text: str = FILE) -> Path:
    file = tmp_path / "two.toml"
    file.write_text(text)
    return file


def test_sets_are_drawn_by_weight_and_numbered_each_for_itself(tmp_path: Path) -> None:
    config = load_campaign(written(tmp_path))
    assert config.train_labels == ("bugs.train", "games.levels")
    assert config.splits == ("bugs.train", "games.levels", "bugs.dev")
    assert plan_of(config).eval_splits == ["bugs.dev"]
    draws = [config.label_of_draw(draw) for draw in range(5)]
    assert draws == [
        ("bugs.train", 0),
        ("bugs.train", 1),
        ("bugs.train", 2),
        ("games.levels", 0),
        ("bugs.train", 3),
    ]
    assert config.task_set("games.levels") == TaskSet(
        "games", "levels", limit=20, agent="long", unverified=Unverified.USE
    )
    assert config.order_seed("bugs.train") != config.order_seed("games.levels")


def test_what_is_stored_is_read_as_the_same_campaign(tmp_path: Path) -> None:
    config = load_campaign(written(tmp_path))
    stored = config.model_dump(mode="json")
    assert isinstance(stored["tasks"], list) and stored["tasks"][0]["name"] == "bugs.train"
    assert CampaignConfig.model_validate(stored) == config
    assert CampaignConfig.model_validate(stored, context=STORED) == config
    assert not differences(config, CampaignConfig.model_validate(config.model_dump()))
    assert counts_of("tasks.0.weight") is None
    changed = given(config, [(("tasks", "0", "weight"), 1)])
    assert list(differences(config, changed)) == ["tasks"]
    fields = {name: getattr(config, name) for name in RunConfig.model_fields}
    assert RegradeConfig(**fields, of="two").tasks == config.tasks


def test_one_table_is_stored_and_drawn_as_ever() -> None:
    config = CampaignConfig.model_validate({"name": "one", "policy": {"model": "/m"}})
    assert set(config.model_dump(mode="json")["tasks"]) == {
        *("source", "num_train", "num_heldout", "num_heldout_templates", "unverified")
    }
    assert config.label_of_draw(7) == ("train", 7)
    assert config.order_seed("train") == config.seed


def test_a_field_of_one_set_is_set_by_its_number(tmp_path: Path) -> None:
    file = written(tmp_path)
    config = load_campaign(file, overrides=Overrides(("tasks.0.weight=2",)))
    assert [each.weight for each in config.tasks.sets] == [2, 1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("tasks.5.weight=1", "tasks has 2 entries, counted from 0, and no number 5"),
        ("tasks.source=x", r"\[tasks\] cannot stand above \[\[tasks\]\]"),
    ],
)
def test_what_names_no_set_is_refused(tmp_path: Path, given: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_campaign(written(tmp_path), overrides=Overrides((given,)))


def test_a_table_and_a_list_are_not_mixed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tasks"):
        load_campaign(written(tmp_path, FILE + '\n[tasks]\nsource = "x"\n'))
    written(tmp_path)
    above = tmp_path / "above.toml"
    above.write_text('extends = "two.toml"\n[tasks]\nsource = "x"\n')
    with pytest.raises(ConfigError, match=r"above.toml: \[tasks\] cannot stand above \[\[tasks"):
        load_campaign(above)


A, B = {"source": "a"}, {"source": "b"}


@pytest.mark.parametrize(
    ("sets", "fields", "message"),
    [
        ([A | {"weight": 0}, B], {}, "tasks.0.weight: must be greater than 0, not 0"),
        ([A | {"weight": -1.5}, B], {}, "tasks.0.weight: must be greater than 0"),
        ([A | {"weight": float("nan")}], {}, "tasks.0.weight: must be a finite number"),
        ([A | {"weight": "much"}], {}, "tasks.0.weight: must be a number"),
        ([A | {"wieght": 1}], {}, "tasks.0.wieght: no such field; did you mean weight"),
        ([], {}, "tasks: has no set"),
        ([A, A], {}, "tasks.1 is called 'a.train', as tasks.0 is"),
        ([A, A | {"name": "x"}], {}, "tasks.1 has the tasks of tasks.0"),
        ([A, B | {"name": "a.train"}], {}, "tasks.1 is called 'a.train'"),
        ([A, B | {"agent": "nobody"}], {}, "tasks.1.agent = 'nobody' has no section"),
        ([A], {"evaluation": {"splits": ["dev"]}}, "write .*evaluation.sources"),
        (
            [A],
            {"evaluation": {"sources": [A | {"split": "train"}]}},
            "evaluation.sources.0 is called 'a.train', as tasks.0 is",
        ),
        (
            [A],
            {"evaluation": {"sources": [A | {"split": "train", "name": "x"}]}},
            "evaluation.sources.0 has the tasks of tasks.0",
        ),
        ([A], {"curriculum": {"pass_rates_of": "e"}}, "pass_rates_of is an evaluation of one"),
    ],
)
def test_sets_that_mean_nothing_are_refused(
    sets: list[dict[str, Any]], fields: dict[str, Any], message: str
) -> None:
    raw = {"name": "c", "policy": {"model": "/m"}, "tasks": sets, **fields}
    with pytest.raises(ValidationError) as refused:
        CampaignConfig.model_validate(raw)
    lines = errors.explain(refused.value, CampaignConfig)
    assert len(lines) == 1 and re.search(message, lines[0]), lines
