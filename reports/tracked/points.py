"""A campaign's figures as points for experiment trackers: which there are, and what they hold.

Invariants: the same figures as in `metrics.jsonl`; in the order in which they were committed; which
points there are is read without reading what they hold.
"""

from collections.abc import Collection
from datetime import datetime

from infra.db.database import Database
from infra.db.reading import evaluations, trained_steps
from infra.db.reading.evaluations import Evaluation
from mainspring.ids import CampaignId
from mainspring.training.tracking import (
    STEPS,
    Point,
    PointId,
    evaluation_series,
    milliseconds,
    point_of,
)
from reports.metrics import StepFigures, lines


async def point_ids(database: Database, campaign: CampaignId) -> list[PointId]:
    async with database.snapshot() as connection:
        steps = await trained_steps.times(connection, campaign)
        measured = await evaluations.read(connection, campaign)
    ids = [PointId(STEPS, step, milliseconds(time)) for step, time in steps]
    ids += [
        _id(evaluation, evaluation.finished_at) for evaluation in measured if evaluation.finished_at
    ]
    return sorted(ids, key=_order)


async def points(database: Database, campaign: CampaignId, ids: Collection[PointId]) -> list[Point]:
    """Those of `ids` that are still there."""
    steps = [point.step for point in ids if point.series == STEPS]
    async with database.snapshot() as connection:
        chosen = StepFigures(
            campaign=campaign,
            steps=await trained_steps.read(connection, campaign, steps),
            lengths=await trained_steps.lengths(connection, campaign, steps),
            compositions=await trained_steps.compositions(connection, campaign, steps),
            evaluations=await evaluations.read(connection, campaign),
        )
    all_points = [point_of(line) for line in lines(chosen) if line["time"] is not None]
    return sorted(
        (point for point in all_points if point.id in ids), key=lambda point: _order(point.id)
    )


def _id(evaluation: Evaluation, finished_at: datetime) -> PointId:
    series = evaluation_series(evaluation.split, evaluation.sampling)
    return PointId(series, evaluation.version, milliseconds(finished_at))


def _order(point: PointId) -> tuple[int, str, int]:
    return point.time_ms, point.series, point.step
