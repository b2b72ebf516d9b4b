"""The trainer worker: one campaign's training activities in front of one Ray driver.

It works while it holds the campaign's lease, and ends when another trainer took over or when Ray
under its ranks has ended: its supervisor starts the next one, which resumes.
"""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

from temporalio.worker import Worker

from activities.extensions import ExtensionActivities
from activities.sft_training import SftTrainingActivities
from infra.db import campaigns, trainers
from infra.db.connect import open_database
from infra.db.database import Database
from infra.log_setup import set_up
from infra.temporal.faults import Faults
from infra.temporal.log import runtime
from infra.temporal.takeover import end_attempts, worker_identity
from infra.tracking.gauges import Gauges
from mainspring.errors import DatabaseError
from mainspring.ids import (
    CampaignId,
    campaign_id,
    campaign_workflow,
    trainer_queue,
    waiting_trainer_queue,
)
from mainspring.settings import Settings, load_settings
from mainspring.training_faults import TrainerFenced, TrainerLost
from trainer.backend import RayTrainer
from trainer.ray_cluster import LOCAL
from workers import tracking, trainer_lease
from workers.polling import (
    GRACE,
    HEARTBEAT_THROTTLE,
    end_process,
    poll_until_stopped,
    run_worker,
)
from workers.service_link import ServiceLink

LOOK_S = 1.0
"""Between two looks for the campaign."""
CHECK_S = 5.0
"""Between two looks at Ray's servers: they may end while nothing is computed."""


def main(home: Path | None, name: str) -> None:
    settings = load_settings(home)
    set_up(settings.log_format)
    try:
        run_worker(_run(settings, name))
    except (TrainerFenced, TrainerLost) as fault:
        print(f"the trainer ends: {fault}", file=sys.stderr)
        end_process(fault.exit_code)


async def _run(settings: Settings, name: str) -> None:
    campaign = campaign_id(name)
    async with open_database(settings) as db:
        name = trainer_queue(campaign)
        address = settings.metrics_address
        link = await ServiceLink.open(
            settings, db, name=worker_identity(name), metrics_address=address
        )
        gauges = Gauges(runtime(address).metric_meter, campaign) if address else None
        async with Worker(
            link.client,
            task_queue=waiting_trainer_queue(campaign),
            activities=[ExtensionActivities().check_extensions],
            max_concurrent_activity_task_polls=1,
        ):
            await _stored(db, campaign)
        lease = await trainer_lease.take(db, campaign, link.check_addresses)
        backend = RayTrainer(settings.home, settings.ray_address or LOCAL)
        training = SftTrainingActivities(db, settings.home, backend, lease.epoch)
        worker = Worker(
            link.client,
            task_queue=name,
            activities=[
                training.prepare_policy,
                training.train_step,
                training.check_logprobs,
                training.sft_steps,
            ],
            interceptors=[Faults()],
            graceful_shutdown_timeout=GRACE,
            max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        )
        # Of the process that held the lease before: what it does now would be refused.
        retried = await end_attempts(link.client, name, [campaign_workflow(campaign)])
        link.announce(
            "trainer", worker.task_queue, campaign=campaign, epoch=lease.epoch, retried=retried
        )
        try:
            await poll_until_stopped(
                link,
                [worker],
                lambda: trainer_lease.keep(db, lease),
                lambda: _watch(backend),
                lambda: training.stay_ready(campaign),
                lambda: tracking.follow(db, campaign, settings.home, gauges),
            )
        finally:
            await asyncio.to_thread(backend.shutdown)
            # Without it the next trainer waits until this one's silence is noticed.
            with suppress(DatabaseError):
                await trainers.release(db, campaign, lease.epoch)


async def _stored(db: Database, campaign: CampaignId) -> None:
    """Return once the campaign is stored: it may be started before its trainer or after it."""
    waited = False
    while await campaigns.find(db, campaign) is None:
        if not waited:
            print(f"waiting for campaign {campaign} to be started", file=sys.stderr, flush=True)
        waited = True
        await asyncio.sleep(LOOK_S)


async def _watch(backend: RayTrainer) -> None:
    """Raises TrainerLost when the ranks can never be reached again from this process."""
    while True:
        backend.check()
        await asyncio.sleep(CHECK_S)
