"""A tracker: where a campaign's figures are shown beside those of other programs.

Invariants: a campaign is one run of the tracker, found by the campaign's uid, so that a process
that is started again continues it; what the tracker has is asked of the tracker, so a point is sent
once whatever was killed. Calls block and come one at a time; whatever they raise means that the
tracker is down. Imported by the trackers and by `workers.tracking`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from mainspring.config.tracking import TrackingConfig
from mainspring.status import CampaignStatus
from mainspring.training.tracking import Point, PointId, TracedStep, TrackedCampaign

Sent = TypeVar("Sent", Point, TracedStep, contravariant=True)
"""Points of a kind."""


@dataclass(frozen=True, slots=True)
class TrackedBy:
    """Facts that a tracker is made of."""

    campaign: TrackedCampaign
    tracking: TrackingConfig
    directory: Path
    """For files of the tracker's own; may not exist."""


class Receiver(Protocol[Sent]):
    def open(self) -> set[PointId]:
        """Continue the campaign's run, or begin it; the points it has. Called again after a
        failure."""
        ...

    def send(self, points: Sequence[Sent]) -> None:
        """Add points that the run lacks, in their order."""
        ...

    def end(self, status: CampaignStatus | None) -> None:
        """After the last `send`: make all of it permanent, and mark the run as ended; None: only
        this process ends. A later `open` continues the run."""
        ...


Tracker = Receiver[Point]
"""For the figures of a campaign."""
TraceTracker = Receiver[TracedStep]
"""For traces of its rollouts."""
