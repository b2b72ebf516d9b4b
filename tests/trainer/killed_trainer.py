"""A trainer process that trains a planned campaign to its end, and is killed where it is armed.

    python -m tests.trainer.killed_trainer DATABASE_URL HOME CAMPAIGN POINTS_JSON

POINTS_JSON: {"1": [point, ..], ..}: the points of each step, one armed for each attempt. A rank or
raylet that is lost fails an attempt, as in a campaign, and the next one begins.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import psutil
import ray
from temporalio.testing import ActivityEnvironment

from activities.training import training
from activities.training.training import TrainingActivities
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.training import policies, steps, trainers
from mainspring.config.any_run import training as training_config
from mainspring.ids import CampaignId
from mainspring.protocol.campaign import CampaignRef, StepInput
from mainspring.training.training_faults import TrainerLost
from tests.trainer.deadly_engine import ARMED_AT, deadly, meet, met
from trainer.engines import checkpoint
from trainer.process import driver
from trainer.process.backend import RayTrainer
from trainer.process.driver import TrainerDriver


def arm_driver() -> None:
    """Its points are around what the activity calls."""

    def around(owner: object, name: str, before: str = "", after: str = "") -> None:
        setattr(owner, name, deadly(getattr(owner, name), before=before, after=after))

    around(RayTrainer, "load", "driver before load", "driver after load")
    load, since = RayTrainer.load, [psutil.Process().create_time()]

    def timed_load(self, job, checkpoint, version):
        """The first time from the start of the process, then from the call."""
        began = since.pop() if since else time.time()
        load(self, job, checkpoint, version)
        print(f"version {version} is held after {time.time() - began:.1f} s", flush=True)

    RayTrainer.load = timed_load
    around(RayTrainer, "train_step", "driver before step", "driver after step")
    around(RayTrainer, "save", "driver before save")
    around(checkpoint, "commit", "driver before rename", "driver after rename")
    around(RayTrainer, "begin_checkpoint", "driver before writing", "driver while it is written")
    around(checkpoint, "add_shards", "driver before shards", "driver after shards")
    put = policies.put_checkpoint

    async def deadly_put(*args, **kwargs):
        await put(*args, **kwargs)
        meet("driver after checkpoint")

    training.policies.put_checkpoint = deadly_put
    commit, prune, step = steps.commit_step, TrainingActivities._prune, driver.TrainerDriver._get

    async def deadly_commit(*args, **kwargs):
        meet("driver before commit")
        done = await commit(*args, **kwargs)
        meet("driver after commit")
        return done

    async def deadly_prune(self, *arguments):
        meet("driver before prune")
        await prune(self, *arguments)

    def without_raylet(self, calls):
        if self._pids and met("raylet within step"):
            raylets = [p for p in psutil.Process().children(True) if p.name() == "raylet"]
            for raylet in raylets:
                raylet.kill()
        return step(self, calls)

    training.steps.commit_step = deadly_commit
    TrainingActivities._prune = deadly_prune
    driver.TrainerDriver._get = without_raylet


async def main(url: str, home: Path, campaign: CampaignId, points: dict[str, list[str]]) -> None:
    armed_at = Path(os.environ[ARMED_AT])
    armed_at.mkdir(exist_ok=True)
    arm_driver()
    async with Database.open(url) as db:
        lease = await trainers.take(
            db, campaign, owner=str(os.getpid()), process=str(os.getpid()), silent_s=0.0
        )
        assert lease is not None
        config = training_config((await campaigns.get(db, campaign)).config)
        backend = RayTrainer(home, TrainerDriver())
        activities = TrainingActivities(db, home, backend, lease.epoch)
        await ActivityEnvironment().run(activities.prepare_policy, CampaignRef(campaign=campaign))
        for step in range(1, config.trainer.num_steps + 1):
            await steps.plan_step(db, campaign, step, config.trainer.groups_per_step)
            ask = StepInput(campaign=campaign, step=step, num_groups=config.trainer.groups_per_step)
            while True:
                for point in points.get(str(step), []):
                    if not (armed_at / f"hit {point}").exists():
                        (armed_at / point).touch()
                        break
                began = time.time()
                try:
                    result = await ActivityEnvironment().run(activities.train_step, ask)
                except TrainerLost as error:
                    print(f"lost: {str(error).splitlines()[0]}", flush=True)
                    if not ray.is_initialized() or "raylet" in str(error):
                        sys.exit(3)  # as the worker does: Ray cannot be started again in a process
                    continue
                print(f"step {step} took {time.time() - began:.1f} s: {result.version}", flush=True)
                left = [p for p in points.get(str(step), []) if (armed_at / p).exists()]
                for point in left:
                    (armed_at / point).unlink()
                break
        backend.ranks.shutdown()


if __name__ == "__main__":
    _, url, home, campaign, points = sys.argv
    asyncio.run(main(url, Path(home), CampaignId(campaign), json.loads(points)))
