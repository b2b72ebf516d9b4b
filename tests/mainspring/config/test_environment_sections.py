"""Sections [environments.NAME]: what is refused, and where their folders are."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from mainspring.config.agents.environments import EnvironmentConfig, Family
from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.reading import check_campaign, load_campaign, read_environments
from mainspring.environments.choice import check_environments, check_world, environment_of
from mainspring.environments.families import FORMS, form_of
from mainspring.errors import ConfigError
from mainspring.ids import TaskId
from mainspring.tasks.own_task import OwnTask

URL = {"kind": "agentgym", "family": "textcraft", "url": "http://127.0.0.1:36001/"}
GUESS = {"kind": "verifiers", "environment": "guess-v1"}
TASK = OwnTask(id=TaskId("t"), kind="rooms", source="s", split="train", issue="Go.")
COMMAND = ["python", "service.py", "{port}"]


def config_of(section: Any, kind: str = "rooms", **fields: Any) -> CampaignConfig:
    raw = {"name": "c", "policy": {"model": "/m"}, "environments": {kind: section}, **fields}
    return check_campaign(raw, "c.toml")


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({}, r"environments\.rooms\.kind: is missing"),
        (
            {"kind": "gym"},
            r"environments\.rooms\.kind: must be 'agentgym' or 'verifiers', not 'gym'",
        ),
        (
            {"kind": "agentgym", "url": URL["url"]},
            r"rooms: give family, the form of the service: text",
        ),
        ({**URL, "args": {"a": 1}}, r"rooms: args: only for the kind \"verifiers\""),
        ({"kind": "verifiers"}, r"environments\.rooms: give environment, the id"),
        ({**GUESS, "environment": " "}, r"environments\.rooms: give environment, the id"),
        ({**GUESS, "url": URL["url"]}, r"rooms: url: the kind \"verifiers\" has its own command"),
        ({**GUESS, "command": COMMAND, "scale": 2}, r"rooms: command, scale: the kind"),
        ({**GUESS, "args": 3}, r"environments\.rooms\.args: must be a table"),
        ({**GUESS, "args": {"day": date(2026, 1, 2)}}, r"rooms\.args: holds a date, a time, or a"),
        ({**GUESS, "args": {"x": float("inf")}}, r"rooms\.args: holds a date, a time, or a number"),
        ({**GUESS, "args": {"id": "x"}}, r"rooms\.args: has id, which is the field environment"),
        ({**GUESS, "python": 3}, r"environments\.rooms\.python: must be text"),
        ({**URL, "family": "gym"}, r"environments\.rooms\.family: must be 'textcraft', 'babyai'"),
        ({**URL, "url": "localhost:1"}, r"rooms\.url: 'localhost:1' is not an http"),
        ({**URL, "port": 3}, r"environments\.rooms: port, folder and variables belong to command"),
        ({**URL, "command": COMMAND}, r"rooms: give either url, .* or command"),
        ({"kind": "agentgym", "family": "textcraft"}, r"rooms: give either url"),
        ({**URL, "url": "", "command": ["a"]}, r"no argument of command has \"{port}\""),
        ({**URL, "url": "", "command": COMMAND, "port": 70000}, r"rooms\.port: must be at most"),
        ({**URL, "scale": 0}, r"rooms\.scale: must be greater than 0"),
        ({**URL, "resolved_at": float("nan")}, r"rooms\.resolved_at: must be a finite number"),
        ({**URL, "request_timeout_s": "30"}, r"must be a number, without quotes"),
        ({**URL, "closes": "yes"}, r"rooms\.closes: must be true or false"),
        ({**URL, "time_out": 3}, r"environments\.rooms\.time_out: no such field"),
        (7, r"environments\.rooms: must be a section"),
    ],
)
def test_a_section_that_cannot_be_used_is_refused(section: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        config_of(section)


def test_a_score_is_the_reward_unless_the_file_names_others() -> None:
    assert [part.name for part in config_of(URL).reward.parts] == ["score"]
    given = {"parts": [{"name": "outcome"}]}
    assert [part.name for part in config_of(URL, reward=given).reward.parts] == ["outcome"]
    assert [part.name for part in config_of("own:Class").reward.parts] == ["outcome"]


@pytest.mark.parametrize("section", [URL, {**GUESS, "args": {"a": [1, {"b": "c"}]}}])
def test_what_is_stored_is_read_again(section: Any) -> None:
    config = config_of(section)
    again = CampaignConfig.model_validate_json(config.model_dump_json(), context={"stored": True})
    assert again == config
    found = environment_of(again, TASK)
    assert isinstance(found, EnvironmentConfig)
    assert found.url == ("http://127.0.0.1:36001" if section is URL else "")


def test_verifiers_takes_longer_and_scores_what_is_left() -> None:
    section = EnvironmentConfig.model_validate(GUESS)
    assert (section.start_timeout_s, section.request_timeout_s) == (300.0, 120.0)
    assert EnvironmentConfig.model_validate({**GUESS, "start_timeout_s": 9}).start_timeout_s == 9.0
    form = form_of(section)
    assert (form.leaves, form.closes, form.score_field) == (True, True, "reward")
    assert form_of(EnvironmentConfig.model_validate({**GUESS, "worlds": 3})).worlds == 3


@pytest.mark.parametrize(
    ("kind", "agent", "told"),
    [
        ("swe", {}, r"\[environments\.swe\]: tasks of the kind 'swe' need a sandbox"),
        ("rooms", {"kind": "codex"}, r"agent\.kind = 'codex' is a program, which takes no steps"),
    ],
)
def test_what_no_service_can_play_is_refused(kind: str, agent: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        check_environments(config_of(URL, kind, agent=agent))


def test_a_service_may_stand_beside_a_program_that_plays_other_tasks() -> None:
    config = config_of(URL, agent={"kind": "codex"}, agents={"player": {"kind": "react"}})
    check_environments(config)
    check_world(config, TASK.model_copy(update={"agent_name": "player"}))
    with pytest.raises(ConfigError, match=r"service, in which the program 'codex' takes no"):
        check_world(config, TASK)
    both = {"agent": {"kind": "codex"}, "agents": {"c": {"kind": "claude-code"}}}
    told = r"agent\.kind = 'codex' and agents\.c\.kind = 'claude-code' are programs, which take no"
    with pytest.raises(ConfigError, match=told):
        check_environments(config_of(URL, **both))


def test_a_task_of_another_kind_is_no_program_s() -> None:
    function = {"kind": "function", "options": {"function": "acting:play"}}
    agents = {"plays": function, "client": {"kind": "codex"}}
    config = CampaignConfig.model_validate(
        {"name": "c", "policy": {"model": "/m"}, "agents": agents}
    )
    check_world(config, TASK.model_copy(update={"agent_name": "plays"}))
    for name in (None, "client", "codex"):
        with pytest.raises(ConfigError, match="no environment is named for tasks of the kind"):
            check_world(config, TASK.model_copy(update={"agent_name": name}))


def test_every_family_has_a_form() -> None:
    assert set(FORMS) == set(Family)
    for family in Family:
        section = EnvironmentConfig.model_validate({**URL, "family": family})
        assert form_of(section) == FORMS[family]


def test_fields_beside_the_family_change_its_form() -> None:
    fields = {"observation_field": "seen", "score_field": "points", "scale": 10, "sums": True}
    form = form_of(EnvironmentConfig.model_validate({**URL, **fields, "closes": False}))
    assert (form.observation_field, form.opening_fields) == ("seen", ("seen",))
    assert (form.score_field, form.scale, form.sums, form.closes) == ("points", 10, True, False)


def test_a_command_starts_in_the_files_folder(tmp_path: Path) -> None:
    file = tmp_path / "campaign.toml"
    file.write_text(
        """
name = "c"
[policy]
model = "/m"
[environments]
own = "own:Class"
[environments.here]
kind = "agentgym"
family = "textcraft"
command = ["python", "{port}"]
[environments.there]
kind = "agentgym"
family = "textcraft"
command = ["python", "{port}"]
folder = "games"
[environments.guess]
kind = "verifiers"
environment = "guess-v1"
python = "../vf/bin/python"
[environments.named]
kind = "verifiers"
environment = "guess-v1"
python = "python3"
"""
    )
    config = load_campaign(file)
    folders = {
        name: section.folder
        for name, section in config.environments.items()
        if isinstance(section, EnvironmentConfig)
    }
    here = str(tmp_path)
    assert folders == {
        "here": here,
        "there": str(tmp_path / "games"),
        "guess": here,
        "named": here,
    }
    assert read_environments(file) == {
        name: section for name, section in config.environments.items() if name != "own"
    }
    pythons = [read_environments(file)[name].python for name in ("guess", "named", "here")]
    assert pythons == [str(tmp_path.parent / "vf" / "bin" / "python"), "python3", ""]
