"""Publishing: load a policy version into all engines of its campaign at once. Safe to run twice.

The first version that this process publishes for a campaign is compared with its manifest: it may
have been altered while the campaign was stopped.
"""

import asyncio
from pathlib import Path

from temporalio import activity

from activities.implements import implements
from infra.db.database import Database
from infra.db.runs import events
from infra.db.training import policies
from infra.db.training.policies import PolicyRecord
from infra.policy.engines.wire import NothingListens
from infra.policy.model.written_files import verify_written
from infra.policy.protocol import Publisher
from infra.policy.serving import ServedCampaigns, label_of
from infra.temporal.heartbeat import Beat, heartbeating
from infra.tracking import spans
from mainspring.ids import CampaignId
from mainspring.protocol.activities import PUBLISH_POLICY
from mainspring.protocol.campaign import PolicyRef
from mainspring.status import EventKind


class PublishingActivities:
    def __init__(self, db: Database, served: ServedCampaigns) -> None:
        self._db = db
        self._served = served
        self._verified: set[CampaignId] = set()

    @implements(PUBLISH_POLICY)
    async def publish_policy(self, ref: PolicyRef) -> PolicyRef:
        async with heartbeating() as beat:
            served = await self._served.of(ref.campaign)
            assert served.publisher is not None, "publish_policy called for a text endpoint"
            newest = None
            if not served.is_reproducible:
                # Not always the version asked for: a campaign that was reset asks for an older one.
                newest = await policies.latest_policy(self._db, ref.campaign)
            policy = newest or await policies.get_policy(self._db, ref.campaign, ref.version)
            if ref.campaign not in self._verified:
                beat.show("comparing files with their manifest")
                path = Path(policy.path)
                await asyncio.to_thread(verify_written, path, ref.campaign, weights=True)
                self._verified.add(ref.campaign)
            # One that stands still would hold up the others. One that may be paused for an earlier
            # attempt's load must not be left so.
            begun = [url for url in served.lost_engines if beat.earlier(_loading(url)) is True]
            engines = [*served.engines, *begun]
            beat.show(f"version {policy.version} to {len(engines)} engines")
            await self._tell_repeated(ref.campaign, policy.version)
            loads = [_publish(served.publisher, engine, policy, beat) for engine in engines]
            # Not a TaskGroup: its group of exceptions would hide what kind of fault it was, and one
            # engine's failure would cut off the loads of the others.
            ends = await asyncio.gather(*loads, return_exceptions=True)
            if failed := [end for end in ends if end is not None]:
                beat.send()  # which loads began: for the next attempt
                raise failed[0]
        return ref

    async def _tell_repeated(self, campaign: CampaignId, version: int) -> None:
        attempt = activity.info().attempt if activity.in_activity() else 1
        if attempt == 1:
            return
        event = events.Event(
            EventKind.PUBLISH_REPEATED,
            f"version {version}",
            f"version {version} is published again (attempt {attempt})",
            campaign,
            data={"version": version, "attempt": attempt},
        )
        await events.tell(self._db, event)


async def _publish(publisher: Publisher, engine: str, policy: PolicyRecord, beat: Beat) -> None:
    """Done where nothing listens: an engine that is started brings no weights of the campaign, and
    a reply has it load them first. Any other failure is tried again: an engine that was paused, by
    this attempt or one before, would stay so and let its requests wait."""
    left = _loading(engine)
    was_loading = beat.earlier(left) is True
    beat.keep(left, True)
    try:
        with spans.span("load weights", engine=engine, version=policy.version):
            await publisher.publish(engine, Path(policy.path), label_of(policy))
    except NothingListens as absent:
        if was_loading and not absent.has_ended:
            raise  # it may come back as it was left
        activity.logger.warning("%s does not answer: %s", engine, absent)
    beat.keep(left, None)


def _loading(engine: str) -> str:
    """Name of what the next attempt is told of a load that has begun."""
    return f"loading {engine}"
