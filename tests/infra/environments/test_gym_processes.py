"""Services that a node starts: once, again when they died, and never beyond the node's own end."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from infra.environments.gym import service as gym_service
from infra.environments.gym import services as gym_services
from infra.environments.gym.environment import GymEnvironment
from infra.environments.gym.services import GymService, GymServices
from infra.environments.own import OwnEnvironment, OwnWorld
from mainspring.config.agents.environments import EnvironmentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.environments.protocol import EnvironmentBroken, Place, WorldLost
from mainspring.ids import RolloutId, SandboxId, TaskId
from mainspring.tasks.own_task import OwnTask
from tests.processes import running
from tests.waiting import until

ROOT = Path(__file__).parents[3]
GAME = str(ROOT / "examples" / "agentgym" / "service.py")
COMMAND = ("{python}", GAME, "--port", "{port}")


@pytest.fixture
def told() -> list[str]:
    """What was told of services that failed."""
    return []


@pytest.fixture
async def services(tmp_path: Path, told: list[str]) -> AsyncIterator[GymServices]:
    async def tell(campaign: str, environment: str, text: str) -> None:
        told.append(f"{campaign} {environment}: {text}")

    found = GymServices(tmp_path / "environments", tell)
    yield found
    await found.close()


def config_of(*command: str, **fields: Any) -> EnvironmentConfig:
    given = {"kind": "agentgym", "family": "textcraft", "command": command or COMMAND}
    given |= {"same_opening": False, "request_timeout_s": 2.0}
    return EnvironmentConfig.model_validate(given | fields)


def service_of(services: GymServices, config: EnvironmentConfig) -> GymService:
    return services.of("c", "rooms", config)


async def opened(services: GymServices, config: EnvironmentConfig) -> OwnWorld:
    async def lease(backend: str) -> None:
        pass

    run = CampaignConfig(name="c", policy=PolicyConfig(model="m"))
    place = Place(SandboxId("s"), RolloutId("r"), run, {}, lease)
    task = OwnTask(
        id=TaskId("t"), kind="rooms", source="s", split="train", issue="", data={"data_idx": 3}
    )
    environment = GymEnvironment("rooms", config, services)
    return await OwnEnvironment("rooms", environment, ends_steps=True).open(task, place)


def pid_of(services: GymServices, config: EnvironmentConfig) -> int:
    process = service_of(services, config).process
    assert process is not None and process.pid is not None
    return process.pid


async def test_one_process_serves_all_worlds_of_a_campaign(services: GymServices) -> None:
    config = config_of()

    async def late(after_s: float) -> OwnWorld:
        await asyncio.sleep(after_s)  # also while it lives and does not answer yet
        return await opened(services, config)

    worlds = await asyncio.gather(*(late(0.02 * number) for number in range(8)))
    names = set(os.listdir(services.folder))
    assert len(names) == 1 and next(iter(names)).startswith("c-rooms.")
    pid = pid_of(services, config)
    assert psutil.Process(pid).environ()["PYTHONHASHSEED"] == "0"
    assert "DATABASE_URL" not in " ".join(psutil.Process(pid).environ())
    # The same number is the same game.
    seen = {(await world.step("s0", "go left", 60.0)).output for world in worlds}
    assert len(seen) == 1
    for world in worlds:
        await world.close()
    await services.close()
    assert not psutil.pid_exists(pid)


async def test_a_killed_service_is_started_again_and_its_worlds_are_lost(
    services: GymServices, told: list[str]
) -> None:
    config = config_of()
    world = await opened(services, config)
    first = await world.step("s0", "go left", 60.0)
    os.kill(pid_of(services, config), signal.SIGKILL)
    with pytest.raises(WorldLost, match=r"(process ended with code -9|no answer)"):
        await world.step("s1", "go left", 60.0)
    await world.close()
    again = await opened(services, config)
    assert (await again.step("s0", "go left", 60.0)).output == first.output
    assert (await again.step("s2", "go left", 60.0)).reward == 0.0
    # A world of the process before is no world of this one, though its id may be in use.
    with pytest.raises(WorldLost, match="was started again"):
        await world.step("s3", "go left", 60.0)
    await again.close()
    [event] = told
    assert event.startswith("c rooms: service of environment rooms is started again: ")
    assert "code -9" in event


async def test_a_service_that_hangs_is_ended(
    services: GymServices, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gym_services, "LOOK_S", 0.3)
    config = config_of(request_timeout_s=2.0)
    world = await opened(services, config)
    pid = pid_of(services, config)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(WorldLost, match=r"did not answer within 2 s"):
        await world.step("s0", "go left", 60.0)
    assert not psutil.pid_exists(pid)
    assert told == ["c rooms: service of environment rooms hung and was ended"]
    await world.close()
    await (await opened(services, config)).close()


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("{python}", "-c", "raise SystemExit('no table {port}')"), r"its log ends: .*no table"),
        (("{python}", "-c", "# {port}"), r"died 4 times .*; it printed nothing"),
        (("/no/such/program", "{port}"), r"cannot be started: .*No such file"),
        (
            ("{python}", "-c", "import time; print('loading {port}', flush=True); time.sleep(60)"),
            r"did not answer at http://127.0.0.1:\d+ within 4 s; its log ends: loading \d+\n",
        ),
    ],
)
async def test_one_that_does_not_come_up_is_named(
    command: tuple[str, ...], told: str, services: GymServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gym_service, "RESTART_S", 0.01)
    with pytest.raises(EnvironmentBroken, match=told) as caught:
        await opened(services, config_of(*command, start_timeout_s=4.0))
    assert "environments.rooms.command" in caught.value.remedy


async def test_one_that_takes_no_step_is_started_a_bounded_number_of_times(
    services: GymServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gym_service, "RESTART_S", 0.01)
    config = config_of()
    for _ in range(gym_service.MAX_STARTS):
        world = await opened(services, config)
        os.kill(pid_of(services, config), signal.SIGKILL)
        with pytest.raises(WorldLost):
            await world.step("s0", "go left", 60.0)
        await world.close()
    with pytest.raises(EnvironmentBroken, match="died 4 times and took no step in between"):
        await opened(services, config)


async def test_a_port_that_another_process_has_is_named(
    services: GymServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gym_service, "RESTART_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            EnvironmentBroken, match=rf"port {port} of 127.0.0.1 is in use by process {os.getpid()}"
        ):
            await opened(services, config_of(port=port))


async def test_a_service_is_stopped_when_nothing_used_it_for_long(
    services: GymServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gym_services, "IDLE_S", 0.1)
    config = config_of()
    world = await opened(services, config)
    pid = pid_of(services, config)
    await asyncio.sleep(0.3)
    assert psutil.pid_exists(pid)
    await world.close()
    await until(lambda: not psutil.pid_exists(pid))
    await (await opened(services, config)).close()


def held(command: list[str]) -> tuple[subprocess.Popen[str], int]:
    """The process that started a service, and the service's id."""
    holder = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    return holder, int(holder.stdout.readline())


def test_a_service_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.infra.environments.holding_service", str(tmp_path)]
    holder, pid = held([*command, *COMMAND])
    assert psutil.pid_exists(pid)
    holder.kill()
    holder.wait()
    gone, _ = psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], 60)
    assert not psutil.pid_exists(pid) or gone


async def test_what_a_service_left_is_ended_by_the_next_process(tmp_path: Path) -> None:
    program = (
        "import os, subprocess, sys\n"
        "subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"os.execv(sys.executable, [sys.executable, {GAME!r}, '--port', '{{port}}'])\n"
    )
    command = [sys.executable, "-m", "tests.infra.environments.holding_service", str(tmp_path)]
    holder, pid = held([*command, "{python}", "-c", program])
    label = psutil.Process(pid).environ()["MAINSPRING_FUNCTION"]
    left = running(
        lambda each: each.name() == "sleep" and each.environ().get("MAINSPRING_FUNCTION") == label
    )
    assert len(left) == 1
    holder.kill()
    holder.wait()
    services = GymServices(tmp_path)
    await services.clear_left()
    await services.close()
    assert not left[0].is_running() or left[0].status() == psutil.STATUS_ZOMBIE
