"""The trainer worker: one campaign's training activities in front of one Ray driver."""

import asyncio
from pathlib import Path

from temporalio.worker import Worker

from activities.training import TrainingActivities
from infra.db import campaigns
from infra.db.opening import open_database
from infra.temporal import connect
from mainspring.ids import campaign_id, trainer_queue
from mainspring.settings import load_settings
from trainer.backend import RayTrainer
from workers.polling import GRACE, HEARTBEAT_THROTTLE, end_process, poll_until_stopped


def main(home: Path | None, name: str) -> None:
    asyncio.run(_run(home, name))
    end_process(0)


async def _run(home: Path | None, name: str) -> None:
    settings = load_settings(home)
    campaign = campaign_id(name)
    client = await connect(settings)
    async with open_database(settings) as db:
        await campaigns.get(db, campaign)
        backend = RayTrainer(settings.home)
        training = TrainingActivities(db, settings.home, backend)
        worker = Worker(
            client,
            task_queue=trainer_queue(campaign),
            activities=[training.prepare_policy, training.train_step, training.check_logprobs],
            graceful_shutdown_timeout=GRACE,
            max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        )
        try:
            await poll_until_stopped([worker])
        finally:
            await asyncio.to_thread(backend.shutdown)
