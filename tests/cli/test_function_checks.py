"""A function that cannot be called is refused before anything is stored, in one sentence."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.operations.checks.named_parts import check_named, unusable
from cli.operations.machine.embedded_stack import StackInfo
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.errors import UsageError
from mainspring.extensions import ProcessRole, extensions_of
from tests.cli.test_cli_errors import mainspring

HERE = Path(__file__).parents[1] / "infra" / "functions"

FILE = """
name = "t"

[agent]
kind = "function"

[agent.options]
function = "acting:plain"

[policy]
model = "m"

[trainer]
device = "cpu"
"""


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    yield


def campaign(function: str | None, environments: dict[str, str] | None = None) -> CampaignConfig:
    options: dict[str, Any] = {} if function is None else {"function": function}
    return CampaignConfig(
        name="t",
        agent=AgentConfig(kind="function", options=options),
        environments=environments or {},
        policy=PolicyConfig(model="m"),
    )


def test_a_function_that_can_be_called_is_checked() -> None:
    for name in ("half", "told", "with_a_default"):
        check_named(campaign(f"acting:{name}"))


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (None, "names no function"),
        ("acting", "options.function = 'acting'"),
        ("acting:absent", "'acting:absent' cannot be imported"),
        ("nowhere_at_all:f", "'nowhere_at_all:f' cannot be imported"),
        ("acting:plain", "is not async, expected an async function"),
        ("acting:NOT_ONE", "is a int, expected an async function"),
        ("acting:wants_more", "needs reward_model, which it is not given by name"),
        ("acting:by_place", "needs task, which it is not given by name"),
    ],
)
def test_one_that_cannot_be_called_is_refused(function: str | None, problem: str) -> None:
    config = campaign(function)
    with pytest.raises(UsageError, match=problem) as refused:
        check_named(config)
    assert refused.value.exit_code == 2 and refused.value.remedy
    assert [what for what, _ in unusable(config)] == ["agent"]


def test_the_command_refuses_it_in_one_sentence(stack: StackInfo, tmp_path: Path) -> None:
    file = tmp_path / "campaign.toml"
    file.write_text(FILE)
    ended = mainspring("campaign", "start", str(file), home=stack.home, PYTHONPATH=str(HERE))
    assert ended.returncode == 2 and "Traceback" not in ended.stderr
    assert "missing: " in ended.stderr
    told = " ".join(ended.stdout.split())
    assert "'acting:plain' is not async" in told and "async def" in told


def test_a_class_that_judges_needs_no_world() -> None:
    check_named(campaign("acting:half", {"game": "test_function_checks:Judge"}))
    with pytest.raises(UsageError, match="lacks grade"):
        check_named(campaign("acting:half", {"game": "test_function_checks:NoJudge"}))
    with pytest.raises(UsageError, match="lacks open"):
        check_named(campaign("acting:half", {"swe": "test_function_checks:Judge"}))


def test_nodes_are_asked_whether_they_can_call_it() -> None:
    config = campaign("acting:half")
    [extension] = extensions_of(config, ProcessRole.NODE)
    assert (extension.what, extension.path) == ("function", "acting:half")
    assert extensions_of(config, ProcessRole.ROLLOUT_WORKER) == []


class Judge:
    def __init__(self, backends: Any) -> None: ...

    async def grade(self, task: Any, result: bytes, place: Any) -> None: ...


class NoJudge:
    def __init__(self, backends: Any) -> None: ...
