"""The service for environments of verifiers, without that package: worlds, texts, refusals."""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from stub_environment import (
    ASKS_TWICE,
    DIES,
    FAILS,
    HANGS,
    IMAGE,
    NAN,
    NO_SCORE,
    PLAYS,
    STREAMS,
)
from worlds_of_services import environment_of, opened, place_of, task_of, verifiers_section

from infra.environments.gym import service as gym_service
from infra.environments.gym import services as gym_services
from infra.environments.gym.commands import command_of
from infra.environments.gym.services import GymServices
from infra.environments.verifiers.conversation import NotShown, observation, reply_message
from infra.sandbox.protocol import SandboxRefused
from mainspring.config.agents.environments import EnvironmentConfig
from mainspring.environments.protocol import EnvironmentBroken, WorldLost
from mainspring.errors import SandboxError
from mainspring.status import Verdict

STUB = str(Path(__file__).parent / "stub_environment.py")
CALL = '{"name": "count", "arguments": {"to": 3}}'


def config_of(environment: str = "stub", **fields: Any) -> EnvironmentConfig:
    return verifiers_section(environment, **fields)


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[GymServices]:
    found = GymServices(tmp_path / "environments")
    yield found
    await found.close()


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> EnvironmentConfig:
    """Section whose service is the stub."""

    def command(config: EnvironmentConfig, port: int) -> list[str]:
        return [sys.executable, STUB, "--port", str(port)]

    monkeypatch.setattr(gym_service, "command_of", command)
    monkeypatch.setattr(gym_service, "RESTART_S", 0.01)
    return config_of(request_timeout_s=5.0)


@pytest.mark.parametrize("number", [PLAYS, STREAMS, ASKS_TWICE])
async def test_the_agent_is_the_model_of_the_environment(
    number: int, services: GymServices, stub: EnvironmentConfig
) -> None:
    world = await opened(services, stub, number)
    seen = [await world.step(f"s{at}", action, 60.0) for at, action in enumerate(("1", CALL, "3"))]
    assert [(each.output, each.reward, each.is_over) for each in seen] == [
        (b"You said 1.", 0.0, False),
        (b"Counted.", 0.0, False),
        (b"", 0.75, True),
    ]
    finished = await world.finish()
    assert json.loads(finished.result)["parts"] == {
        "rewards": {"counted": 0.75},
        "metrics": {"num_said": 3.0},
    }
    judged = await environment_of(services, stub).grade(
        task_of(number), finished.result, place_of()
    )
    assert (judged.verdict, judged.report.score) == (Verdict.NOT_RESOLVED, 0.75)
    assert judged.report.judge == "verifiers"
    assert judged.output.splitlines()[1:] == ["rewards: counted 0.75", "metrics: num_said 3"]
    await world.close()


async def test_the_first_text_is_the_whole_request(
    services: GymServices, stub: EnvironmentConfig
) -> None:
    shown = config_of(same_opening=True)
    with pytest.raises(SandboxRefused, match=r"for number 0: 'Task 0\. Count to three\. These too"):
        await opened(services, shown, PLAYS)


async def test_a_world_that_is_left_is_scored_as_it_is(
    services: GymServices, stub: EnvironmentConfig
) -> None:
    world = await opened(services, stub, PLAYS)
    await world.step("s0", "1", 60.0)
    for _ in range(2):  # the activity may run twice
        left = json.loads((await world.finish()).result)
        assert (left["score"], left["is_over"], left["num_steps"]) == (0.25, False, 1)
        assert left["parts"]["metrics"] == {"num_said": 1.0}
    await world.close()
    failing = await opened(services, stub, NO_SCORE)
    with pytest.raises(WorldLost, match=r"/leave answered HTTP 500: TaskError: no answer is known"):
        await failing.finish()
    await failing.close()


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (FAILS, r"answered HTTP 500: OSError: the table is gone"),
        (DIES, r"(ended with code 3; its log ends: .*out of tables|no answer)"),
        (HANGS, r"did not answer within 1 s"),
    ],
)
async def test_a_fault_of_the_environment_is_no_score(
    number: int,
    told: str,
    services: GymServices,
    stub: EnvironmentConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gym_services, "LOOK_S", 0.3)
    config = stub.model_copy(update={"request_timeout_s": 1.0} if number == HANGS else {})
    world = await opened(services, config, number)
    with pytest.raises(WorldLost, match=told):
        await world.step("s0", "act", 60.0)
    await world.close()
    again = await opened(services, config, PLAYS)
    assert (await again.step("s0", "act", 60.0)).output == b"You said act."
    await again.close()


async def test_a_score_that_is_none_is_named(
    services: GymServices, stub: EnvironmentConfig
) -> None:
    world = await opened(services, stub, NAN)
    with pytest.raises(EnvironmentBroken, match=r"gave reward = nan, which is no reward"):
        await world.step("s0", "act", 60.0)
    await world.close()


async def test_a_number_outside_and_an_image_are_refused(
    services: GymServices, stub: EnvironmentConfig
) -> None:
    with pytest.raises(SandboxRefused, match=r"refuses the task's number 9: there are 9 tasks"):
        await opened(services, stub, 9)
    with pytest.raises(SandboxError, match=r"has a part of the type 'image_url', and an agent"):
        await opened(services, stub, IMAGE)


def dist_info(folder: Path, version: str) -> dict[str, str]:
    """Variables of a Python that has verifiers installed in this version, but no module of it."""
    installed = folder / f"verifiers-{version}.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text(f"Name: verifiers\nVersion: {version}\n")
    return {"PYTHONPATH": str(folder)}


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("0.2.4", r"has verifiers 0\.2\.4, which is not played: run .* 'verifiers>=0\.4,<0\.5'"),
        ("0.5.0", r"has verifiers 0\.5\.0, which is not played"),
        ("0.4.0", r"environment 'guess-v1' cannot be loaded: ModuleNotFoundError: No module named"),
    ],
)
async def test_an_installation_that_cannot_be_used_is_named(
    version: str, told: str, services: GymServices, tmp_path: Path
) -> None:
    variables = dist_info(tmp_path / "site", version)
    config = config_of(environment="guess-v1", variables=variables)
    with pytest.raises(EnvironmentBroken, match=told) as caught:
        await opened(services, config, 0)
    assert "correct [environments.stub]" in caught.value.remedy


async def test_a_python_without_verifiers_is_named(services: GymServices, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentBroken) as caught:
        await opened(services, config_of(), 0)
    here = sys.executable
    assert caught.value.message == (
        f"environment stub: its Python {here} has no verifiers: "
        f"run {here} -m pip install 'verifiers>=0.4,<0.5'"
    )
    missing = config_of(python=str(tmp_path / "no" / "python"))
    with pytest.raises(EnvironmentBroken, match=r"cannot be started: .*No such file") as caught:
        await opened(services, missing, 0)
    assert "environments.stub.python" in caught.value.remedy


async def test_what_was_refused_is_tried_again_later(
    services: GymServices, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gym_service, "REFUSED_S", 0.5)
    config = config_of(variables=dist_info(tmp_path / "site", "0.2.4"))
    for version in ("0.2.4", "0.3.0"):
        with pytest.raises(EnvironmentBroken, match=f"has verifiers {version}"):
            await opened(services, config, 0)
        for old in (tmp_path / "site").iterdir():
            old.rename(old.with_name("verifiers-0.3.0.dist-info"))
        metadata = tmp_path / "site" / "verifiers-0.3.0.dist-info" / "METADATA"
        metadata.write_text("Name: verifiers\nVersion: 0.3.0\n")
        monkeypatch.setattr(gym_service.time, "monotonic", _later(gym_service.time.monotonic))


def _later(clock: Any) -> Any:
    return lambda: clock() + 60.0


def test_the_command_holds_what_the_section_has() -> None:
    config = config_of(python="/vf/bin/python", args={"tools": ["a"]}, folder="/here")
    python, start, *words = command_of(config, 81)
    assert python == "/vf/bin/python" and Path(start).is_file()
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert given == {
        "--port": "81",
        "--environment": "stub",
        "--args": '{"tools": ["a"]}',
        "--folder": "/here",
    }


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_only_what_is_new_is_shown() -> None:
    first = [{"role": "system", "content": "Play."}, user("Go.")]
    assert observation(first, [], [], []) == "Play.\n\nGo."
    reply = {"role": "assistant", "content": "left"}
    later = [*first, reply, user("A wall."), user("Again.")]
    assert observation(later, [], first, []) == "A wall.\n\nAgain."
    # Another conversation is shown whole, and so is one that was rewritten.
    assert observation(first, [], later, []) == "Play.\n\nGo."
    rewritten = [user("Summary."), {"role": "assistant", "content": "left"}, user("Go on.")]
    assert observation(rewritten, [], first, []) == (
        "[user]\nSummary.\n\n[assistant]\nleft\n\n[user]\nGo on."
    )
    with pytest.raises(NotShown, match="input_audio"):
        observation([{"role": "user", "content": [{"type": "input_audio"}]}], [], [], [])


def test_tools_are_listed_once() -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    first = [user("Go.")]
    shown = observation(first, [tool], [], [])
    assert shown.startswith("Go.\n\nThese tools can be called")
    assert shown.endswith('{"name": "look", "parameters": {"type": "object"}}')
    later = [*first, {"role": "assistant", "content": "x"}, user("No.")]
    assert observation(later, [tool], first, [tool]) == "No."
    assert "look" in observation(later, [tool], first, [])


@pytest.mark.parametrize(
    ("action", "is_call"),
    [
        ('{"name": "look", "arguments": {"at": "desk"}}', True),
        (' {"arguments": {}, "name": "unknown"}\n', True),
        ('{"name": "look", "arguments": "desk"}', False),
        ('{"name": "look", "arguments": {}, "more": 1}', False),
        ('I call {"name": "look", "arguments": {}}', False),
        ("[" * 100_000, False),
        ("NaN", False),
        ("", False),
    ],
)
def test_an_action_is_a_tool_call_or_a_text(action: str, is_call: bool) -> None:
    message = reply_message(action, [{"function": {"name": "look"}}], 3)
    assert ("tool_calls" in message) is is_call
    if is_call:
        [call] = message["tool_calls"]
        assert call["id"] == "call_3" and json.loads(call["function"]["arguments"]) is not None
    else:
        assert message["content"] == action
    assert "tool_calls" not in reply_message(action, [], 3)
