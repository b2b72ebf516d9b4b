"""Follows a campaign in the store and gives its figures, and traces of its rollouts, to trackers.

Invariants: reads only, and nothing of the campaign waits for it; each tracker has a thread of its
own, and another one for traces: one that is slow or down holds up neither the trainer nor the other
trackers, and traces hold up no figures; a failure is logged once by the tracker's name and tried
again until the campaign's trainer ends. What a tracker has is asked of it again after each failure,
so points are not sent twice. Run beside the worker of the trainer.
"""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.runs.campaigns import CampaignRecord
from infra.tracking.choice import make_trace_tracker, make_tracker
from infra.tracking.gauges import Gauges
from infra.tracking.protocol import Receiver, TrackedBy
from mainspring.artifacts import layout
from mainspring.config.campaign import CampaignConfig
from mainspring.config.sft import SftConfig
from mainspring.config.tracking import TrackingConfig
from mainspring.errors import DatabaseError, MainspringError
from mainspring.ids import CampaignId
from mainspring.status import CampaignStatus
from mainspring.training.tracking import (
    Point,
    PointId,
    TracedStep,
    TrackedCampaign,
    chosen,
    parameters_of,
    traces_per_step,
)
from reports.tracked.points import point_ids, points
from reports.tracked.step_traces import StepTraces

LOOK_S = 5.0
"""Between two looks at the store."""
ATTEMPTS = 3
ATTEMPT_PAUSE_S = 2.0
RETRY_S = 60.0
"""After `ATTEMPTS` failures in a row."""
SLOW_S = 60.0
"""Duration of one call before it is told of."""
LAST_S = 8.0
"""For what is not sent yet when the trainer ends; less than its activities get (GRACE)."""
BATCH = 100
"""Points between two looks at the campaign."""
STEPS_AT_ONCE = 1
"""Steps whose traces are in memory at once."""
SECRETS = ("WANDB_API_KEY", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")

log = structlog.get_logger()
T = TypeVar("T")
Sent = TypeVar("Sent", Point, TracedStep)


@dataclass(frozen=True, slots=True)
class Feed(Generic[Sent]):
    """Points of one kind, as the store has them."""

    ids: Callable[[Database, CampaignId], Awaitable[list[PointId]]]
    read: Callable[[Database, CampaignId, list[PointId]], Awaitable[Sequence[Sent]]]
    batch: int
    """Points that are read at once."""


FIGURES: Feed[Point] = Feed(point_ids, points, BATCH)


class TrackerDown(MainspringError):
    """A tracker refused a call, or cannot be reached."""


async def follow(
    database: Database, campaign: CampaignId, home: Path, gauges: Gauges | None = None
) -> None:
    """Returns never. A campaign without trackers costs one look. `gauges`: of this process."""
    record = await _stored(database, campaign)
    tracking = _tracking_of(record)
    followers = [
        Follower(database, campaign, name, _maker(make_tracker, name, record, home))
        for name in chosen(tracking)
    ]
    if gauges is not None:
        followers.append(Follower(database, campaign, "gauges", lambda: gauges))
    tracers = [
        Follower(
            database,
            campaign,
            f"{name} (traces)",
            _maker(make_trace_tracker, name, record, home),
            _traces(num_rollouts),
        )
        for name, num_rollouts in traces_per_step(tracking).items()
    ]
    await asyncio.gather(*(follower.run() for follower in (*followers, *tracers)))
    await asyncio.Event().wait()


def _tracking_of(record: CampaignRecord) -> TrackingConfig:
    config = record.config
    return config.tracking if isinstance(config, CampaignConfig | SftConfig) else TrackingConfig()


def _traces(num_rollouts: int) -> Feed[TracedStep]:
    reader = StepTraces(num_rollouts)
    return Feed(reader.ids, reader.read, STEPS_AT_ONCE)


def _maker(
    make: Callable[[str, TrackedBy], Receiver[Sent]],
    name: str,
    record: CampaignRecord,
    home: Path,
) -> Callable[[], Receiver[Sent]]:
    tracked = TrackedBy(
        campaign=TrackedCampaign(
            name=record.id,
            uid=record.uid,
            parameters=parameters_of(record.config.model_dump(mode="json")),
        ),
        tracking=_tracking_of(record),
        directory=layout.tracking(home, record.id, name),
    )
    return lambda: make(name, tracked)


class Follower(Generic[Sent]):
    def __init__(
        self,
        database: Database,
        campaign: CampaignId,
        name: str,
        make: Callable[[], Receiver[Sent]],
        feed: Feed[Sent] = FIGURES,
    ) -> None:
        """`make` is called in the tracker's thread, and again after it failed."""
        self._db = database
        self._campaign = campaign
        self._name = name
        self._make = make
        self._thread = CallThread(f"tracker-{name}")
        self._feed = feed
        self._tracker: Receiver[Sent] | None = None
        self._sent: set[PointId] | None = None
        """Points that the tracker has; None: not asked since the start or the last failure."""
        self._ended: CampaignStatus | None = None
        """Status that the tracker was told."""
        self._num_failures = 0

    async def run(self) -> None:
        """Returns never. Cancelled, it sends what is left, for at most LAST_S."""
        try:
            while True:
                await asyncio.sleep(await self._look())
        except asyncio.CancelledError:
            try:
                async with asyncio.timeout(LAST_S):
                    await self.bring()
                    if self._ended is None:
                        await self._call(lambda tracker: tracker.end(None))
            except (TimeoutError, TrackerDown, DatabaseError) as error:
                log.warning(
                    "figures not sent; they are when the trainer runs again",
                    campaign=self._campaign,
                    tracker=self._name,
                    reason=str(error) or f"no answer within {LAST_S:.0f} s",
                )
            raise

    async def _look(self) -> float:
        """One attempt; seconds until the next one."""
        try:
            await self.bring()
        except DatabaseError:
            return LOOK_S  # the worker's other parts tell of it
        except TrackerDown as down:
            self._num_failures += 1
            if self._num_failures == ATTEMPTS:
                log.warning(
                    "tracker is down; the campaign continues, figures are sent later",
                    campaign=self._campaign,
                    tracker=self._name,
                    reason=down.message,
                )
            return RETRY_S if self._num_failures >= ATTEMPTS else ATTEMPT_PAUSE_S
        if self._num_failures >= ATTEMPTS:
            log.info("tracker answers again", campaign=self._campaign, tracker=self._name)
        self._num_failures = 0
        return LOOK_S

    async def bring(self) -> None:
        """Send all that the tracker lacks. Raises TrackerDown and DatabaseError."""
        record = await campaigns.get(self._db, self._campaign)
        ids = await self._feed.ids(self._db, self._campaign)
        sent_ids = await self._call(self._open) if self._sent is None else self._sent
        self._sent = sent_ids
        lacking = [point_id for point_id in ids if point_id not in sent_ids]
        for start in range(0, len(lacking), self._feed.batch):
            batch = lacking[start : start + self._feed.batch]
            try:
                new_points = await self._feed.read(self._db, self._campaign, batch)
            except DatabaseError:
                raise
            except MainspringError as error:  # rows that were edited by hand hold up no training
                raise TrackerDown(f"tracker {self._name}: {error.message}") from error
            await self._call(lambda tracker, now=new_points: tracker.send(now))
            sent_ids.update(point.id for point in new_points)
        is_over = record.status in campaigns.ENDS
        if is_over and record.status is not self._ended:
            status = record.status
            await self._call(lambda tracker: tracker.end(status))
        self._ended = record.status if is_over else None

    def _open(self, tracker: Receiver[Sent]) -> set[PointId]:
        return tracker.open()

    async def _call(self, call: Callable[[Receiver[Sent]], T]) -> T:
        """In the tracker's thread. Raises TrackerDown, after which it is opened again."""

        def made() -> T:
            if self._tracker is None:
                self._tracker = self._make()
            return call(self._tracker)

        under_way = asyncio.ensure_future(self._thread.run(made))
        try:
            done, _ = await asyncio.wait({under_way}, timeout=SLOW_S)
            if not done:
                log.warning(
                    "tracker is slow; the campaign continues",
                    campaign=self._campaign,
                    tracker=self._name,
                )
            return await asyncio.shield(under_way)
        except asyncio.CancelledError:
            self._sent = None  # the thread may still send what it was given
            raise
        except Exception as error:  # each package has failures of its own, of all classes
            self._tracker = self._sent = self._ended = None
            reason = error.message if isinstance(error, MainspringError) else _told(error)
            raise TrackerDown(f"tracker {self._name}: {reason}") from error


class CallThread:
    """One call at a time, in a daemon thread: a call that hangs must not hold up the process's
    end."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._busy = asyncio.Lock()

    async def run(self, function: Callable[[], T]) -> T:
        """A call whose caller was cancelled still ends before the next one begins."""
        await self._busy.acquire()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            self._busy.release()
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # pyright: ignore[reportArgumentType]

        def work() -> None:
            result, error = None, None
            try:
                result = function()
            except BaseException as raised:
                error = raised
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, result, error)

        threading.Thread(target=work, name=self._name, daemon=True).start()
        return await future


def _told(error: Exception) -> str:
    """The first line, without what the environment keeps secret."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")
    for name in SECRETS:
        if secret := os.environ.get(name):
            text = text.replace(secret, "***")
    return text


async def _stored(database: Database, campaign: CampaignId) -> CampaignRecord:
    while True:
        try:
            return await campaigns.get(database, campaign)
        except DatabaseError:
            await asyncio.sleep(LOOK_S)
