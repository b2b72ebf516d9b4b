"""Functions that play, before any process: which can be called, and what they are shown."""

import json
from typing import Any

import pytest

from mainspring.config.agents.agent import AgentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.reward import RewardConfig, RewardPart
from mainspring.config.trainer import TrainerConfig
from mainspring.config.training.parallel import Device
from mainspring.errors import ConfigError
from mainspring.ids import TaskId
from mainspring.programs import functions
from mainspring.programs.functions import arguments, require_number, returned, visible
from mainspring.programs.profile import Ask
from mainspring.programs.profiles.choice import is_program, profile_for
from mainspring.programs.profiles.function import FunctionProfile
from mainspring.rewards.scoring import Outcome, score
from mainspring.status import StopReason, Verdict
from mainspring.tasks.criterion import GradeReport, TestLog
from mainspring.tasks.swe_task import SweTask

HIDDEN = SweTask(
    id=TaskId("t"),
    source="s",
    split="train",
    issue="It is wrong.",
    image="img",
    base_patch="SECRET brings the bug",
    hidden_files=("SECRET_dir",),
    tests={"tests/SECRET.py": "SECRET"},
    test_patch="SECRET",
    test_command="git apply SECRET && pytest",
    judge=TestLog(parser="p", fail_to_pass=("SECRET",)),
    gold_patch="SECRET",
    solution={"solve.sh": "SECRET"},
    allow_hosts=("pypi.org:443",),
    metadata={"hints": "SECRET"},
)


def test_nothing_that_judges_a_task_reaches_the_function() -> None:
    seen = visible(HIDDEN)
    assert "SECRET" not in json.dumps(seen.model_dump(mode="json"))
    assert isinstance(seen, SweTask)
    assert (seen.id, seen.issue, seen.image, seen.workdir) == ("t", HIDDEN.issue, "img", "/testbed")
    assert seen.allow_hosts == HIDDEN.allow_hosts


def test_every_field_of_a_task_is_shown_or_hidden_on_purpose() -> None:
    shown = set(visible(HIDDEN).model_fields_set)
    hidden = {
        *("base_patch", "hidden_files", "tests", "test_patch", "judge", "gold_patch", "solution"),
        *("metadata", "test_timeout_s", "agent_name", "kind", "executables", "variables"),
        "tools",
    }
    assert shown | hidden == set(SweTask.model_fields) and not shown & hidden


async def some(task: Any, key: str) -> None: ...


async def all_of_it(**everything: Any) -> None: ...


def test_a_function_gets_what_it_takes() -> None:
    values = {name: name for name in functions.PARAMETERS}
    assert arguments(some, values) == {"task": "task", "key": "key"}
    assert arguments(all_of_it, values) == values


@pytest.mark.parametrize("value", [1, 0.25, -3.5, True])
def test_numbers_are_scores(value: float) -> None:
    require_number(returned(value))
    assert functions.stored_score(returned(value).data) == float(value)


@pytest.mark.parametrize("value", ["0.5", b"0.5", [0.5], {"score": 1}, 10**400])
def test_what_is_no_number_is_no_score(value: Any) -> None:
    with pytest.raises(ValueError, match="expected a number"):
        require_number(returned(value))


def config_of(**options: Any) -> AgentConfig:
    return AgentConfig(kind="function", options=options)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "names no function"),
        ({"function": "solve"}, "options.function = 'solve'"),
        ({"function": 3}, "options.function = 3"),
        ({"function": "m:f", "variables": "GYM_URL"}, "options.variables is 'GYM_URL'"),
        ({"function": "m:f", "variables": ["A=B"]}, r"options.variables is \['A=B'\]"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as refused:
        profile_for(config_of(**options))
    assert refused.value.remedy


def test_other_options_are_the_functions_own() -> None:
    config = config_of(function="m:f", variables=["GYM_URL"], service="http://x", level=3)
    profile = profile_for(config)
    assert isinstance(profile, FunctionProfile) and is_program(config)
    assert (profile.path, profile.variables) == ("m:f", ("GYM_URL",))
    assert profile.options_for(Ask("Fix it.", "/", 8192, 1024)) == {
        "service": "http://x",
        "level": 3,
    }


def test_its_score_is_the_reward_unless_parts_are_named() -> None:
    def parts(**sections: Any) -> list[str]:
        config = CampaignConfig(
            name="t",
            policy=PolicyConfig(model="m"),
            trainer=TrainerConfig(device=Device.CPU),
            **sections,
        )
        again = CampaignConfig.model_validate(config.model_dump(mode="json"))
        assert again.reward == config.reward
        return [part.name for part in config.reward.parts]

    agent = config_of(function="m:f")
    assert parts(agent=agent) == ["score"] == parts(agent=agent.model_dump())
    assert parts(agents={"plays": agent}) == ["score"] == parts(agents={"p": agent.model_dump()})
    named = RewardConfig(parts=(RewardPart(name="outcome"),))
    assert parts(agent=agent, reward=named) == ["outcome"]
    assert parts(agent=AgentConfig()) == ["outcome"]


@pytest.mark.parametrize(
    ("verdict", "report", "reward"),
    [
        (Verdict.NOT_RESOLVED, GradeReport(score=-0.25), -0.25),
        (Verdict.RESOLVED, GradeReport(score=7.0), 7.0),
        (Verdict.NO_PATCH, GradeReport(), 0.0),
        (Verdict.RESOLVED, None, 1.0),
        (Verdict.FAULT, GradeReport(score=1.0), None),
    ],
)
def test_the_part_score_is_the_judges_number(
    verdict: Verdict, report: GradeReport | None, reward: float | None
) -> None:
    outcome = Outcome(
        rollout="r",
        task="t",
        stop_reason=StopReason.EXITED,
        verdict=verdict,
        report=report,
        num_turns=1,
        step_limit=5,
        num_format_errors=0,
        num_completion_tokens=1,
        num_tokens=2,
        max_context=100,
    )
    assert score((RewardPart(name="score"),), outcome).reward == reward
