"""Processes for ranks that were started ahead: taken where they fit, else others are."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from mainspring.config.campaign import CampaignConfig
from tests.processes import runs
from tests.trainer.conftest import MakeModel
from tests.waiting import until
from trainer.driver import TrainerDriver


@pytest.fixture
def driver() -> Iterator[TrainerDriver]:
    driver = TrainerDriver()
    yield driver
    driver.shutdown()


@pytest.fixture
def model(make_model: MakeModel) -> Path:
    return make_model()[1]


def rank_processes() -> list[int]:
    """Of the Ray that this process started."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "RankActor" in " ".join(process.cmdline()):
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


async def test_ranks_start_in_the_processes_that_were_made_ahead(
    driver: TrainerDriver, make_config: Callable[..., CampaignConfig], model: Path
) -> None:
    config = make_config()
    driver.warm(config)
    await until(lambda: len(rank_processes()) == 1)
    [ahead] = rank_processes()
    await until(driver.is_warm)
    assert not driver.has_ranks(), "none has weights yet"
    driver.start(config, model)
    assert driver._pids == [ahead] and driver.has_ranks()
    # Taken once: the next ranks are new.
    driver.start(config, model)
    assert driver._pids != [ahead]
    await until(lambda: not runs(ahead))


async def test_of_another_configuration_they_are_not_taken(
    driver: TrainerDriver, make_config: Callable[..., CampaignConfig], model: Path
) -> None:
    driver.warm(make_config())
    await until(lambda: len(rank_processes()) == 1)
    [ahead] = rank_processes()
    driver.start(make_config(threads_per_rank=2), model)
    assert driver._pids != [ahead] and driver.stamp.threads_per_rank == 2
    await until(lambda: not runs(ahead))


async def test_dead_ones_are_not_taken(
    driver: TrainerDriver, make_config: Callable[..., CampaignConfig], model: Path
) -> None:
    config = make_config()
    driver.warm(config)
    await until(lambda: len(rank_processes()) == 1)
    [ahead] = rank_processes()
    os.kill(ahead, signal.SIGKILL)
    await until(lambda: not runs(ahead))
    driver.start(config, model)
    assert driver._pids != [ahead] and driver.has_ranks()
