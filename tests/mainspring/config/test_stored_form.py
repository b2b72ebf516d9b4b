"""What this version stores is read by the oldest program that works on the same store, unless it
uses what came later."""

import json
from pathlib import Path

import pytest
from pydantic import BaseModel

from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.files.reading import load_campaign
from mainspring.config.files.stored import read_stored, stored_form
from mainspring.status import CampaignKind
from tests.mainspring.config.record_fields import FILE, STORED, unmarked

OLDEST = json.loads(FILE.read_text())
EXAMPLES = Path(__file__).parents[3] / "examples"
IN_ITS_OWN_WAY = "tasks.sets"
"""Left out of the section's dump where there is one set."""


@pytest.mark.parametrize("model", STORED, ids=lambda model: model.__name__)
def test_a_new_field_is_marked(model: type[BaseModel]) -> None:
    new = set(unmarked(model)) - set(OLDEST[model.__name__])
    new = {field for field in new if not f"{field}.".startswith(f"{IN_ITS_OWN_WAY}.")}
    assert not new, (
        f"{sorted(new)}: mark with `Annotated[..., Added.SINCE]`, so that programs of the release "
        "before read campaigns that do not use it"
    )


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*/campaign.toml")), ids=str)
def test_what_is_stored_is_read_as_it_was(file: Path) -> None:
    config = load_campaign(file)
    assert read_stored(CampaignKind.TRAIN, stored_form(config)) == config


def test_a_new_field_is_stored_where_it_is_used() -> None:
    plain = load_campaign(EXAMPLES / "own-reward" / "campaign.toml")
    assert "sources" not in stored_form(plain)["evaluation"]
    source = {"source": "other", "split": "test"}
    evaluation = type(plain.evaluation).model_validate({"splits": [], "sources": [source]})
    used = plain.model_copy(update={"evaluation": evaluation})
    assert stored_form(used)["evaluation"]["sources"][0]["source"] == "other"
    assert read_stored(CampaignKind.TRAIN, stored_form(used)) == used


def test_in_a_section_that_is_no_default_too() -> None:
    choose = {"by": "cross_tests", "max_tests": 3}
    config = EvaluationConfig.model_validate(
        {
            "name": "a",
            "samples": 4,
            "choose": choose,
            "policy": {"api": "openai", "model": "m", "engines": ["http://127.0.0.1:1/v1"]},
        }
    )
    stored = stored_form(config)["choose"]
    assert stored == {"by": "cross_tests", "judge": None, "max_tests": 3}
    assert read_stored(CampaignKind.EVAL, stored_form(config)) == config
