"""A campaign's points, and what trackers are made of."""

from pathlib import Path
from typing import Any

from infra.tracking.protocol import TrackedBy
from mainspring.config.tracking import TrackingConfig
from mainspring.training.tracking import STEPS, Point, PointId, TrackedCampaign, evaluation_series

UID = "4f7f1a52-7a3a-4c5c-9f6c-0d9a5b1f2e3d"


def given(directory: Path, **sections: dict[str, Any]) -> TrackedBy:
    return TrackedBy(
        campaign=TrackedCampaign("first", UID, {"trainer.optimizer.lr": "0.001", "seed": "7"}),
        tracking=TrackingConfig.model_validate(sections),
        directory=directory,
    )


def step(number: int, *, again: int = 0) -> Point:
    """`again`: milliseconds after the step that it replaces."""
    figures = {"loss": number / 2, "mfu": None, "reward_part/own:small": 1.0}
    return Point(PointId(STEPS, number, 1_790_000_000_000 + 1000 * number + again), figures)


def evaluation(version: int) -> Point:
    series = evaluation_series("heldout", "sampled")
    return Point(PointId(series, version, 1_790_000_000_500 + 1000 * version), {"resolve_rate": 1})
