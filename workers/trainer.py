"""The trainer worker: one campaign's training activities in front of one Ray driver.

It works while it holds the campaign's lease, and ends when another trainer took over or when Ray
under its ranks has ended: its supervisor starts the next one, which resumes. One that is started as
a standby waits for the lease with its ranks' processes ready (`workers.standby`).
"""

import asyncio
import sys
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

from temporalio.worker import Worker

from activities.extensions import ExtensionActivities
from activities.rollouts import RolloutActivities
from activities.training.retraining import RetrainActivities
from activities.training.sending import SendingActivities
from activities.training.sft_training import SftTrainingActivities
from infra.db.cache import FactCache
from infra.db.connect import PoolRole, open_database
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.runs.campaigns import CampaignRecord
from infra.db.training import trainers
from infra.db.training.trainers import TrainerLease
from infra.log_setup import set_up
from infra.policy.serving import weights_of
from infra.temporal.faults import Faults
from infra.temporal.takeover import end_attempts, worker_identity
from infra.tracking import telemetry
from infra.tracking.gauges import Gauges
from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.colocated import ranks_elsewhere
from mainspring.config.settings import Settings, load_settings
from mainspring.errors import DatabaseError, UsageError
from mainspring.ids import (
    CampaignId,
    campaign_id,
    campaign_workflow,
    trainer_queue,
    waiting_trainer_queue,
)
from mainspring.protocol.timeouts import STICKY_TIMEOUT_S
from mainspring.training.training_faults import TrainerFenced, TrainerLost
from mainspring.words.plain_text import plain
from trainer.process.backend import RayTrainer
from trainer.process.driver import TrainerDriver
from trainer.process.ray_cluster import LOCAL, clear_leftovers
from workers import tracking, trainer_lease
from workers.polling import (
    GRACE,
    HEARTBEAT_THROTTLE,
    end_process,
    poll_until_stopped,
    run_worker,
    stop_signal,
    workflow_runner,
)
from workers.service_link import ServiceLink
from workers.standby import Standby, wait_for_lease
from workflows.retrain import RetrainWorkflow

LOOK_S = 1.0
"""Between two looks for the campaign."""
STICKY_TIMEOUT = timedelta(seconds=STICKY_TIMEOUT_S)
CHECK_S = 5.0
"""Between two looks at Ray's servers: they may end while nothing is computed."""


def main(home: Path | None, name: str, *, standby: bool = False) -> None:
    """Raises UsageError for a standby on Ray of its own address, and for a campaign whose ranks
    share devices with engines, which Ray may place elsewhere."""
    settings = load_settings(home)
    if standby and settings.ray_address:
        raise UsageError(
            f"a standby trainer starts a Ray of its own, and MAINSPRING_RAY_ADDRESS is "
            f"{settings.ray_address}: it would hold what the ranks at work need",
            remedy="start `mainspring worker trainer` without --standby: it waits for the lease, "
            "and makes its ranks then",
        )
    set_up(settings.log_format)
    telemetry.begin("trainer")
    try:
        run_worker(_run(settings, name, standby))
    except (TrainerFenced, TrainerLost) as fault:
        print(f"the trainer ends: {plain(str(fault))}", file=sys.stderr)
        end_process(fault.exit_code)


async def _run(settings: Settings, name: str, standby: bool) -> None:
    campaign = campaign_id(name)
    async with open_database(settings, PoolRole.TRAINER) as db:
        link = await ServiceLink.open(settings, db, name=worker_identity(trainer_queue(campaign)))
        async with Worker(
            link.client,
            task_queue=waiting_trainer_queue(campaign),
            activities=[ExtensionActivities().check_extensions],
            max_concurrent_activity_task_polls=1,
        ):
            record = await _stored(db, campaign)
        if isinstance(record.config, CampaignConfig) and (
            elsewhere := ranks_elsewhere(record.config, settings.ray_address)
        ):
            raise elsewhere
        lease = None
        ranks = TrainerDriver(address=settings.ray_address or LOCAL)
        stop = stop_signal()
        waiting = Standby(db, campaign, ranks) if standby else None
        try:
            lease = await wait_for_lease(db, campaign, link.check_addresses, stop, waiting)
            if lease is not None:
                if standby:
                    # Of the owner before: it ended after this process had looked for such.
                    await asyncio.to_thread(clear_leftovers)
                await _train(settings, db, link, ranks, lease, stop, retrains=record.is_retrained)
        finally:
            await asyncio.to_thread(ranks.shutdown)
            # Without it the next trainer waits until this one's silence is noticed.
            if lease is not None:
                with suppress(DatabaseError):
                    await trainers.release(db, campaign, lease.epoch)


async def _train(
    settings: Settings,
    db: Database,
    link: ServiceLink,
    ranks: TrainerDriver,
    lease: TrainerLease,
    stop: asyncio.Event,
    *,
    retrains: bool,
) -> None:
    """`retrains`: the campaign trains stored batches alone, and its workflow is run here too."""
    campaign = lease.campaign
    gauges = Gauges(link.meter, campaign) if settings.metrics_address else None
    backend = RayTrainer(settings.home, ranks)
    key = settings.policy_api_key
    training = SftTrainingActivities(db, settings.home, backend, lease.epoch, key)
    weights = partial(weights_of, db, api_key=key)
    sending = SendingActivities(db, training.held, ranks, weights, lease.epoch)
    name = trainer_queue(campaign)
    set_status = RolloutActivities(db, FactCache(db)).set_campaign_status
    of_workflow = [RetrainActivities(db).survey_retrain, set_status] if retrains else []
    worker = Worker(
        link.client,
        task_queue=name,
        activities=[
            training.prepare_policy,
            training.train_step,
            training.check_logprobs,
            training.sft_steps,
            sending.send_policy,
            *of_workflow,
        ],
        workflows=[RetrainWorkflow] if retrains else [],
        workflow_runner=workflow_runner(),
        sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
        interceptors=[Faults()],
        graceful_shutdown_timeout=GRACE,
        max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
    )
    # Of the process that held the lease before: what it does now would be refused.
    retried = await end_attempts(link.client, name, [campaign_workflow(campaign)])
    link.announce("trainer", name, campaign=campaign, epoch=lease.epoch, retried=retried)
    await poll_until_stopped(
        link,
        [worker],
        lambda: trainer_lease.keep(db, lease),
        lambda: _watch(ranks),
        lambda: training.stay_ready(campaign),
        lambda: tracking.follow(db, campaign, settings.home, gauges),
        stop=stop,
    )


async def _stored(db: Database, campaign: CampaignId) -> CampaignRecord:
    """Return once the campaign is stored: it may be started before its trainer or after it."""
    waited = False
    while (record := await campaigns.find(db, campaign)) is None:
        if not waited:
            print(f"waiting for campaign {campaign} to be started", file=sys.stderr, flush=True)
        waited = True
        await asyncio.sleep(LOOK_S)
    return record


async def _watch(ranks: TrainerDriver) -> None:
    """Raises TrainerLost when the ranks can never be reached again from this process."""
    while True:
        ranks.check()
        await asyncio.sleep(CHECK_S)
