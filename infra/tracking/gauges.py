"""A campaign's newest figures as gauges for Prometheus, beside those of Temporal's SDK.

Invariants: a gauge is named `mainspring_` and the figure's name, and has the label `campaign`; what
the newest step did not measure is NaN, not the value of a step before. Nothing is kept: a process
that starts sets them anew from the store. Used by the trainer worker, which exposes them at
MAINSPRING_METRICS_ADDRESS.
"""

import math
import re
from collections.abc import Sequence

from temporalio.common import MetricGaugeFloat, MetricMeter

from mainspring.ids import CampaignId
from mainspring.status import CampaignStatus
from mainspring.training.tracking import STEPS, Point, PointId

PREFIX = "mainspring_"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")
Labels = dict[str, str | int | float | bool]


class Gauges:
    def __init__(self, meter: MetricMeter, campaign: CampaignId) -> None:
        self._meter = meter
        self._campaign = campaign
        self._gauges: dict[str, MetricGaugeFloat] = {}

    def open(self) -> set[PointId]:
        return set()

    def send(self, points: Sequence[Point]) -> None:
        for point in points:
            labels = self._labels(point)
            version = "policy_version" if point.id.series == STEPS else "evaluation_policy_version"
            self._set(version, float(point.id.step), labels)
            for figure, value in point.figures.items():
                name, _, part = figure.partition("/")
                name = name if point.id.series == STEPS else f"evaluation_{name}"
                number = math.nan if value is None else float(value)
                self._set(name, number, labels | ({"part": part} if part else {}))

    def end(self, status: CampaignStatus | None) -> None:
        """The last values stay until the process ends."""

    def _labels(self, point: Point) -> Labels:
        labels: Labels = {"campaign": self._campaign}
        if point.id.series != STEPS:
            split, _, sampling = point.id.series.partition("/")[2].rpartition("/")
            labels |= {"split": split, "sampling": sampling}
        return labels

    def _set(self, name: str, value: float, labels: Labels) -> None:
        name = PREFIX + _NOT_IN_NAMES.sub("_", name)
        if name not in self._gauges:
            self._gauges[name] = self._meter.create_gauge_float(name, "See docs/metrics.md.")
        self._gauges[name].set(value, labels)
