"""Which trackers a campaign has in [tracking], and whether their packages are installed.

Invariant: a tracker's package is imported only where points are sent. Imported by the trainer
worker, and by commands, which refuse a campaign whose tracker is not installed.
"""

import importlib.util

from infra.tracking.protocol import TraceTracker, TrackedBy, Tracker
from mainspring.config.tracking import TrackingConfig
from mainspring.errors import ConfigError
from mainspring.training.tracking import TRACE_TRACKERS, TRACKERS, chosen


def check_tracking(tracking: TrackingConfig) -> None:
    """Raises ConfigError for the first whose package is not installed."""
    for name in chosen(tracking):
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"[tracking.{name}] needs the extra {name!r}, which is not installed here",
                remedy=f"pip install 'mainspring[{name}]' here and where the trainer runs, or "
                "remove the section",
            )


def make_tracker(name: str, tracked: TrackedBy) -> Tracker:
    """Imports its package. Raises ConfigError."""
    return TRACKERS.find(name)(tracked)


def make_trace_tracker(name: str, tracked: TrackedBy) -> TraceTracker:
    """Imports its package. Raises ConfigError."""
    return TRACE_TRACKERS.find(name)(tracked)
