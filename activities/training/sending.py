"""Sending a policy version from the trainer's ranks into the engines: faster than its files.

The files are on disk before and stay the truth: what was not sent, for whatever reason, is loaded
from them by `activities.training.publishing`, which follows. Runs in the process that holds the
trainer's lease, and under the publishing lease. Safe to run twice.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from temporalio import activity

from activities.implements import implements
from activities.training.held_version import HeldVersion
from activities.training.trainer_backend import WeightSource
from infra.db.database import Database
from infra.db.nodes import engines
from infra.db.runs import campaigns
from infra.db.training import policies
from infra.db.training.policies import PolicyRecord
from infra.policy.engines.collective import EngineUpdate, updating
from infra.policy.engines.engine_weights import EngineWeights
from infra.policy.protocol import WeightsDiffer
from infra.policy.serving import label_of
from infra.temporal.heartbeat import heartbeating
from infra.tracking import spans
from mainspring.config.any_run import ranks_of
from mainspring.errors import EngineError, EngineUnreachable
from mainspring.ids import CampaignId
from mainspring.protocol.activities import SEND_POLICY
from mainspring.protocol.campaign import PolicyRef, SendResult
from mainspring.training.sending import BUCKET_BYTES
from mainspring.training.step_metrics import Origin, TrainerJob
from mainspring.training.training_faults import SendingFailed

T = TypeVar("T")
MEET_S = 60.0
"""For all engines to join, and for each transfer."""


class Run(Protocol):
    def __call__(self, function: Callable[..., T], *arguments: object) -> Awaitable[T]: ...


class SendingActivities:
    def __init__(
        self,
        db: Database,
        held: HeldVersion,
        source: WeightSource,
        weights_of: Callable[[CampaignId], Awaitable[EngineWeights]],
        epoch: int,
    ) -> None:
        """`held`: of the same ranks as those of `source`; `weights_of`: of a campaign's engines."""
        self._db = db
        self._held = held
        self._source = source
        self._weights_of = weights_of
        self._weights: EngineWeights | None = None
        self._epoch = epoch

    @implements(SEND_POLICY)
    async def send_policy(self, ref: PolicyRef) -> SendResult:
        """Raises WeightsDiffer, ModelError."""
        async with heartbeating(f"version {ref.version}") as beat, self._held.in_turn:
            record = await campaigns.get(self._db, ref.campaign)
            config = ranks_of(record.config)
            origin = Origin(
                campaign=ref.campaign, uid=record.uid, config_digest=record.config_digest
            )
            job = TrainerJob(config, origin, self._epoch)
            if not await self._held.holds(job, ref.version):
                reason = f"the trainer's ranks do not hold version {ref.version}"
                return SendResult(num_engines=0, reason=reason)
            policy = await policies.get_policy(self._db, ref.campaign, ref.version)
            self._weights = self._weights or await self._weights_of(ref.campaign)
            fleet = await engines.members(self._db, ref.campaign, config.policy.engines)
            urls = [each.url for each in fleet if not (each.draining or each.is_lost)]
            beat.show(f"version {ref.version} to {len(urls)} engines")
            try:
                return await self._send(self._weights, urls, policy)
            except WeightsDiffer:
                raise
            except (SendingFailed, EngineUnreachable, EngineError) as error:
                activity.logger.warning("version %d was not sent: %s", ref.version, error)
                return SendResult(num_engines=0, reason=error.message[:500])

    async def _send(
        self, weights: EngineWeights, urls: Sequence[str], policy: PolicyRecord
    ) -> SendResult:
        with spans.span("send weights", version=policy.version) as sent:
            async with updating(weights, urls, Path(policy.path), label_of(policy)) as update:
                if update.engines:
                    await through_group(self._source, self._held.run, update)
            sent.tell(num_engines=len(update.engines))
        return SendResult(num_engines=len(update.engines))


async def through_group(
    source: WeightSource, run: Run, update: EngineUpdate, *, bucket_bytes: int = BUCKET_BYTES
) -> None:
    """`run`: calls what blocks in the thread of `source`."""
    name = f"mainspring-{uuid.uuid4().hex[:12]}"
    try:
        meetings = await run(source.open_meetings, name, update.num_ranks)
        await _both(run(source.meet, MEET_S), update.join(meetings))
        await update.begin()
        while buckets := await run(source.gather, bucket_bytes):
            await _both(run(source.send), update.take(buckets))
        await update.finish()
    finally:
        await run(source.part)


async def _both(ours: Awaitable[None], theirs: Awaitable[None]) -> None:
    """Both sides of a transfer; the first failure, once both have ended."""
    ends = await asyncio.gather(ours, theirs, return_exceptions=True)
    # What an engine tells of the failure is the cause, of which the rank saw the effect.
    for end in reversed(ends):
        if isinstance(end, BaseException):
            raise end
