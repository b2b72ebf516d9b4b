"""An agent of Harbor that cannot play is refused before anything is stored, in one sentence."""

import asyncio
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from activities.extensions import ExtensionActivities
from cli.operations.checks.named_parts import check_named, unusable
from cli.operations.machine.embedded_stack import StackInfo
from infra.harbor import checking, installation
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.errors import ConfigError, UsageError
from mainspring.extensions import ProcessRole, extensions_of
from mainspring.protocol.extensions import ExtensionsInput
from tests.cli.test_cli_errors import mainspring

ROOT = Path(__file__).parents[2]
HERE = ROOT / "tests" / "workflows"
EXAMPLE = ROOT / "examples" / "harbor-agent"


def campaign(**options: Any) -> CampaignConfig:
    return CampaignConfig(
        name="t",
        agent=AgentConfig(kind="harbor", options=options),
        policy=PolicyConfig(model="m"),
    )


@pytest.fixture
def harbor(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    try:
        installation.require()
    except ConfigError as lacking:
        pytest.skip(lacking.message)
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield


def test_an_older_python_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 11, 9, "final", 0))
    with pytest.raises(UsageError, match=r"need Python 3\.12, and this process has 3\.11") as told:
        check_named(campaign(agent="codex"))
    assert "make install PYTHON=python3.12" in told.value.remedy and told.value.exit_code == 2
    assert "need Python 3.12" in checking.problem_of("codex")
    assert [what for what, _ in unusable(campaign(agent="codex"))] == ["agent"]


def test_a_package_that_is_absent_or_another_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 12, 1, "final", 0))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="harbor, which has Harbor's agents, is not installed"):
        installation.require()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.25.0")
    with pytest.raises(ConfigError, match=r"at 0\.25\.0, expected 0\.24\.0") as told:
        installation.require()
    assert "mainspring[harbor]" in told.value.remedy


def test_the_command_refuses_an_unknown_agent_in_one_sentence(
    stack: StackInfo, tmp_path: Path
) -> None:
    file = tmp_path / "campaign.toml"
    text = (EXAMPLE / "campaign.toml").read_text().replace("solver:Solver", "goose")
    file.write_text(text)
    ended = mainspring("campaign", "start", str(file), home=stack.home)
    assert ended.returncode == 2 and "Traceback" not in ended.stderr
    assert "missing: " in ended.stderr
    told = " ".join(ended.stdout.split())
    assert "'goose' cannot play" in told and "choose from mini-swe-agent" in told


@pytest.mark.parametrize(
    "options",
    [
        {"agent": "mini-swe-agent", "cost_limit": "3"},
        {"agent": "claude-code", "max_turns": 3, "disable_web_search": True},
        {"agent": "codex", "reasoning_effort": "high"},
        {"agent": "terminus-2", "max_turns": 10},
        {"agent": "solver:Solver", "timeout_s": 10},
        {"agent": "acting_harbor:OwnMini", "bundle": "mini-swe-agent", "cost_limit": "3"},
        {"agent": "acting_harbor:InImage", "in_image": True},
    ],
)
def test_an_agent_that_can_be_made_is_checked(harbor: None, options: dict[str, Any]) -> None:
    check_named(campaign(**options))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"agent": "nowhere_at_all:A"}, "'nowhere_at_all:A' cannot be imported"),
        ({"agent": "acting_harbor:Absent"}, "'acting_harbor:Absent' cannot be imported"),
        ({"agent": "acting_harbor:NotOne"}, "is the class NotOne, expected a class that extends"),
        ({"agent": "acting_harbor:said"}, "is function, expected a class that extends"),
        ({"agent": "acting_harbor:Acting"}, "'acting_harbor:Acting' lacks run"),
        ({"agent": "acting_harbor:InImage"}, "is an installed one, and nothing is installed"),
        ({"agent": "solver:Solver", "bundle": "codex"}, "is no installed one"),
        ({"agent": "solver:Solver", "in_image": True}, "is no installed one"),
        ({"agent": "solver:Solver", "timeout": 3}, "of 'solver:Solver' has no timeout"),
        ({"agent": "codex", "nonsense": 1}, "Unknown option 'nonsense'"),
        ({"agent": "codex", "reasoning_effort": "much"}, "reasoning_effort: Input should be"),
        ({"agent": "terminus-2", "parser_name": "yaml"}, "parser_name"),
        ({"agent": "acting_harbor:RaisesWhenMade"}, "cannot be made: RuntimeError: no room"),
        ({"agent": "acting_harbor_exits:A"}, "ended the process that imported it"),
    ],
)
def test_one_that_cannot_be_made_is_refused(
    harbor: None, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UsageError) as refused:
        check_named(campaign(**options))
    assert problem in refused.value.message and refused.value.remedy


async def test_a_node_tells_what_it_cannot_make(harbor: None) -> None:
    async def problems(**options: Any) -> list[str]:
        asked = extensions_of(campaign(**options), ProcessRole.NODE)
        answer = await ExtensionActivities().check_extensions(
            ExtensionsInput(queue="q", extensions=asked)
        )
        return answer.problems

    good, bad, absent = await asyncio.gather(
        problems(agent="codex"),
        problems(agent="acting_harbor:NotOne"),
        problems(agent="nowhere_at_all:A"),
    )
    assert good == [] and "expected a class that extends" in bad[0]
    assert "'nowhere_at_all:A' cannot be imported" in absent[0]
