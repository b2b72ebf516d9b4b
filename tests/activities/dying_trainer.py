"""A trainer process with ranks that only look at the engines, which is killed where it is told.

    python -m tests.activities.dying_trainer DATABASE_URL HOME CAMPAIGN MODEL POINT

It trains step 1 of a colocated campaign. POINT: a part of the name of the point where it kills
itself; "nowhere": it ends in order. Each pass of the ranks ends the process with an error where an
engine holds weights.
"""

import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Self

import httpx
from temporalio.testing import ActivityEnvironment

from activities.training import shared_devices, training
from activities.training.trainer_backend import Progress
from activities.training.training import TrainingActivities
from infra.db.database import Database
from infra.db.leases import ProcessLease
from infra.db.runs import campaigns
from infra.db.training import steps, trainers
from infra.policy.engines.dialects import lent_memory
from mainspring.algorithms.gap import LogprobGap
from mainspring.artifacts.layout import HF_DIRECTORY
from mainspring.artifacts.stamp import Stamp
from mainspring.ids import CampaignId
from mainspring.protocol.campaign import StepInput
from mainspring.training.step_metrics import StepMetrics, TrainerJob
from mainspring.trajectories.samples import Sample
from tests.empty_step import EMPTY_STEP

POINTS = (
    "lease taken",
    "before an engine gives memory",
    "after an engine gave memory",
    "ranks on the devices",
    "within the step",
    "before commit",
    "after commit",
    "ranks left",
)
_POINT = ""


def reach(point: str) -> None:
    if point == _POINT:
        os.kill(os.getpid(), signal.SIGKILL)


class NoBackground:
    version = None

    def finish(self, *, wait: bool) -> int | None:
        return None


class LookingRanks:
    """Backend and ranks in one."""

    background = NoBackground()
    stamp = Stamp.model_construct()

    def __init__(self, urls: list[str], model: Path) -> None:
        self._urls = urls
        self._model = model
        self._version: int | None = None

    @property
    def ranks(self) -> Self:
        return self

    def _look(self) -> None:
        for url in self._urls:
            memory = httpx.get(url + "/server_info", timeout=60).json()["memory"]
            if memory["weights_bytes"]:
                print(f"engine {url} holds {memory['weights_bytes']} bytes", flush=True)
                os._exit(4)

    def be_on_device(self, wanted: bool) -> None:
        if wanted:
            self._look()
            reach("ranks on the devices")
        else:
            self._look()
            reach("ranks left")

    def has_ranks(self) -> bool:
        return self._version is not None

    def holds(self, job: TrainerJob, version: int) -> bool:
        return self._version == version

    def load(self, job: TrainerJob, checkpoint: Path, version: int) -> None:
        self._look()
        self._version = version

    def train_step(self, samples: list[Sample], step: int) -> StepMetrics:
        self._look()
        reach("within the step")
        return EMPTY_STEP

    def save(self, job: TrainerJob, directory: Path, version: int, batch: str, **_: bool) -> None:
        self._look()
        shutil.copytree(self._model, directory / HF_DIRECTORY, dirs_exist_ok=True)
        self._version = version

    def prepare(self, job: TrainerJob, directory: Path, progress: Progress) -> None:
        raise AssertionError("version 0 is stored")

    def begin_checkpoint(self, job: TrainerJob, directory: Path, version: int) -> None:
        raise AssertionError("every checkpoint is waited for")

    def trained_again(self, job: TrainerJob, version: int, batch: str) -> None:
        self._version = version

    def logprob_gap(
        self, samples: list[Sample], version: int, export: Path | None = None
    ) -> LogprobGap:
        raise AssertionError("no evaluation here")


def arm() -> None:
    take, post, commit = ProcessLease._take, lent_memory._post, steps.commit_step

    async def deadly_take(self: ProcessLease) -> None:
        await take(self)
        if self.name.startswith("devices/"):
            reach("lease taken")

    async def deadly_post(calls, engine, route):
        reach("before an engine gives memory")
        await post(calls, engine, route)
        reach("after an engine gave memory")

    async def deadly_commit(*args, **kwargs):
        reach("before commit")
        done = await commit(*args, **kwargs)
        reach("after commit")
        return done

    ProcessLease._take = deadly_take
    lent_memory._post = deadly_post
    training.steps.commit_step = deadly_commit
    shared_devices.LOOK_S = 0.05


async def main(url: str, home: Path, campaign: CampaignId, model: Path) -> None:
    arm()
    async with Database.open(url) as db:
        lease = await trainers.take(
            db, campaign, owner=str(os.getpid()), process=str(os.getpid()), silent_s=0.0
        )
        assert lease is not None
        urls = list((await campaigns.get(db, campaign)).config.policy.engines)
        backend = LookingRanks(urls, model)
        activities = TrainingActivities(db, home, backend, lease.epoch)
        ask = StepInput(campaign=campaign, step=1, num_groups=1)
        done = await ActivityEnvironment().run(activities.train_step, ask)
        print(f"version {done.version}", flush=True)


if __name__ == "__main__":
    _, url, home, campaign, model, _POINT = sys.argv
    asyncio.run(main(url, Path(home), CampaignId(campaign), Path(model)))
