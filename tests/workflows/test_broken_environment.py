"""Environments that break their protocol: named, and nothing else on the node is disturbed."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from cluster import Cluster
from guessing import config_of, play

from infra.db.nodes import sandboxes
from infra.db.rollouts import turns
from infra.environments.hosted import Environments
from mainspring.environments.protocol import CommandResult, Finished, WorldLost
from mainspring.errors import ConfigError
from mainspring.ids import TaskId
from mainspring.status import StopReason, Verdict
from mainspring.tasks.own_task import OwnTask

pytestmark = pytest.mark.usefixtures("guess_importable")


class _World:
    def __init__(self, step: Callable[[str], Awaitable[Any]]) -> None:
        self._step = step

    async def step(self, step_id: str, command: str, timeout_s: float) -> Any:
        return await self._step(command)

    async def finish(self) -> Any:
        return b"no Finished"

    async def close(self) -> None:
        pass


def _environment(step: Callable[[str], Awaitable[Any]]) -> type:
    class Made:
        def __init__(self, backends: Any) -> None:
            pass

        async def open(self, task: Any, place: Any) -> _World:
            return _World(step)

        async def grade(self, task: Any, result: bytes, place: Any) -> Any:
            raise AssertionError("nothing is graded")

    return Made


async def _raises(command: str) -> CommandResult:
    raise KeyError("secret")


async def _gives_text(command: str) -> str:
    return "higher"


async def _times_out_by_itself(command: str) -> CommandResult:
    raise TimeoutError("its own")


async def _gives_long_text(command: str) -> CommandResult:
    return CommandResult(0, b"correct" if command == "9" else b"x" * (2 << 20))


async def _never_ends(command: str) -> CommandResult:
    await asyncio.sleep(3600)
    raise AssertionError("it was cancelled")


async def _is_lost(command: str) -> CommandResult:
    raise WorldLost("the game's server has ended")


async def _gives_nan(command: str) -> CommandResult:
    return CommandResult(0, b"higher", reward=float("nan"))


Raises = _environment(_raises)
GivesNan = _environment(_gives_nan)
GivesText = _environment(_gives_text)
TimesOutByItself = _environment(_times_out_by_itself)
GivesLongText = _environment(_gives_long_text)
NeverEnds = _environment(_never_ends)
IsLost = _environment(_is_lost)


class WorldNotClosed(_World):
    async def finish(self) -> Finished:
        return Finished(b"")

    async def close(self) -> None:
        raise OSError("its socket is gone")


class NotClosed(Raises):
    async def open(self, task: Any, place: Any) -> Any:
        return WorldNotClosed(_gives_long_text)


class NoWorld(Raises):
    async def open(self, task: Any, place: Any) -> Any:
        return None


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Raises", "step raised KeyError: 'secret'"),
        ("GivesText", "step gave a str, expected CommandResult"),
        ("GivesNan", "step gave the reward nan, expected a number"),
        ("TimesOutByItself", "step raised TimeoutError: its own"),
        ("GivesLongText", "finish gave a bytes, expected Finished"),
        ("NoWorld", "open gave a world without step, finish, close"),
    ],
)
async def test_one_that_breaks_its_protocol_ends_the_campaign(
    cluster: Cluster, name: str, problem: str
) -> None:
    cluster.policy.say = lambda rollout, turn: "8" if turn == 0 else "9"
    result = await play(cluster, f"test_broken_environment:{name}")
    assert result.stop_reason is StopReason.INFRA_FAULT and result.reward is None
    assert result.broken is not None
    _, ran = await turns.history(cluster.db, result.rollout, 0)
    assert [(len(each.output), each.truncated) for each in ran if each.truncated] == (
        [(1 << 20, True)] if name == "GivesLongText" else []
    )
    assert f"environment 'test_broken_environment:{name}': {problem}" in result.broken


async def test_a_node_that_cannot_import_it_ends_the_campaign_by_name(cluster: Cluster) -> None:
    result = await play(cluster, "nowhere_at_all:Game")
    assert result.stop_reason is StopReason.INFRA_FAULT and result.reward is None
    assert result.broken is not None
    assert "environment 'nowhere_at_all:Game' cannot be imported" in result.broken
    assert await sandboxes.rollout_leases(cluster.db, result.rollout) == []


async def test_a_step_that_takes_too_long_is_cancelled_and_reported(cluster: Cluster) -> None:
    cluster.policy.say = lambda rollout, turn: "8"
    result = await play(cluster, "test_broken_environment:NeverEnds", command_timeout_s=0.2)
    _, ran = await turns.history(cluster.db, result.rollout, 0)
    assert all(each.timed_out and each.returncode == -1 for each in ran) and len(ran) == 8


async def test_a_world_that_cannot_be_closed_disturbs_no_other(cluster: Cluster) -> None:
    cluster.policy.say = lambda rollout, turn: "9"
    result = await play(cluster, "test_broken_environment:NotClosed")
    assert (result.stop_reason, result.verdict) == (StopReason.SUBMITTED, Verdict.NO_PATCH)
    assert (await sandboxes.rollout_leases(cluster.db, result.rollout))[0].status.value == "closed"


async def test_a_world_that_is_always_lost_is_given_up(cluster: Cluster) -> None:
    cluster.policy.say = lambda rollout, turn: "8"
    result = await play(cluster, "test_broken_environment:IsLost")
    assert result.stop_reason is StopReason.INFRA_FAULT and result.broken is None
    assert result.fault is not None and "the game's server has ended" in result.fault


def test_a_class_that_cannot_be_made_is_refused_by_the_node(cluster: Cluster) -> None:
    config = config_of("c", "test_broken_environment:Made")
    task = OwnTask(id=TaskId("t"), kind="guess", source="s", split="train", issue="x")
    with pytest.raises(ConfigError, match="cannot be made: TypeError"):
        Environments(cluster.backends).of(config, task)


class Made:
    """It takes no argument."""

    async def open(self, task: Any, place: Any) -> None: ...

    async def grade(self, task: Any, result: bytes, place: Any) -> None: ...
