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
from trainer.process.driver import TrainerDriver


@pytest.fixture
def driver() -> Iterator[TrainerDriver]:
    driver = TrainerDriver()
    yield driver
    driver.shutdown()


@pytest.fixture
def model(make_model: MakeModel) -> Path:
    return make_model()[1]


@pytest.fixture
def others() -> set[int]:
    """Processes for ranks of tests before, which share this process's Ray."""
    return set(rank_processes())


async def made_ahead(others: set[int]) -> int:
    """The one process for a rank that is started now."""
    await until(lambda: len(set(rank_processes()) - others) == 1)
    [ahead] = set(rank_processes()) - others
    return ahead


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
    driver: TrainerDriver,
    others: set[int],
    make_config: Callable[..., CampaignConfig],
    model: Path,
) -> None:
    config = make_config()
    driver.warm(config)
    ahead = await made_ahead(others)
    await until(driver.is_warm)
    assert not driver.has_ranks(), "none has weights yet"
    driver.start(config, model)
    assert driver._pids == [ahead] and driver.has_ranks()
    # Taken once: the next ranks are new.
    driver.start(config, model)
    assert driver._pids != [ahead]
    await until(lambda: not runs(ahead))


async def test_of_another_configuration_they_are_not_taken(
    driver: TrainerDriver,
    others: set[int],
    make_config: Callable[..., CampaignConfig],
    model: Path,
) -> None:
    driver.warm(make_config())
    ahead = await made_ahead(others)
    driver.start(make_config(threads_per_rank=2), model)
    assert driver._pids != [ahead] and driver.stamp.threads_per_rank == 2
    await until(lambda: not runs(ahead))


async def test_dead_ones_are_not_taken(
    driver: TrainerDriver,
    others: set[int],
    make_config: Callable[..., CampaignConfig],
    model: Path,
) -> None:
    config = make_config()
    driver.warm(config)
    ahead = await made_ahead(others)
    os.kill(ahead, signal.SIGKILL)
    await until(lambda: not runs(ahead))
    driver.start(config, model)
    assert driver._pids != [ahead] and driver.has_ranks()
