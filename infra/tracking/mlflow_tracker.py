"""MLflow: one run for a campaign, found by the tag that has the campaign's uid.

Invariants: the marker of a point is the last of its metrics, so a run that has the marker has the
whole point; a point that a process was killed in the middle of is completed, metric by metric.
Names and passwords are MLflow's own environment variables.
"""

from collections.abc import Sequence

from infra.tracking.mlflow_run import CampaignRun  # isort: skip  # it sets MLflow's environment

from mlflow.entities import Metric, Param, Run

from infra.tracking.protocol import TrackedBy
from mainspring.status import CampaignStatus
from mainspring.training.tracking import STEPS, Point, PointId

MARKER = "policy_version"
MAX_BATCH = 100
"""Parameters in one request: the most that MLflow takes."""
MAX_VALUE = 500
"""Characters of a parameter, which every store takes."""
_ENDS = {
    CampaignStatus.FINISHED: "FINISHED",
    CampaignStatus.FAILED: "FAILED",
    CampaignStatus.CANCELLED: "KILLED",
}


class MlflowTracker:
    def __init__(self, tracked: TrackedBy) -> None:
        self._campaign = tracked.campaign
        self._run = CampaignRun(tracked)
        self._client = self._run.client
        self._run_id = ""
        self._is_new = True
        """The next point is the first one of this process: it may be there in part."""

    def open(self) -> set[PointId]:
        run = self._run.found_or_made()
        self._run_id, self._is_new = run.info.run_id, True
        if run.info.status != "RUNNING":
            self._client.update_run(self._run_id, status="RUNNING")
        self._send_parameters(run)
        markers = [name for name in run.data.metrics if name.split("/")[-1] == MARKER]
        return {
            PointId(_series(marker), metric.step, metric.timestamp)
            for marker in markers
            for metric in self._client.get_metric_history(self._run_id, marker)
        }

    def send(self, points: Sequence[Point]) -> None:
        for point in points:
            metrics = _metrics(point)
            if self._is_new:
                metrics = [metric for metric in metrics if not self._has(metric)]
            self._client.log_batch(self._run_id, metrics=metrics)
            self._is_new = False

    def end(self, status: CampaignStatus | None) -> None:
        if status is not None:
            self._client.set_terminated(self._run_id, status=_ENDS[status])

    def _send_parameters(self, run: Run) -> None:
        params = [
            Param(name, value[:MAX_VALUE])
            for name, value in self._campaign.parameters.items()
            if name not in run.data.params
        ]
        for start in range(0, len(params), MAX_BATCH):
            self._client.log_batch(self._run_id, params=params[start : start + MAX_BATCH])

    def _has(self, metric: Metric) -> bool:
        history = self._client.get_metric_history(self._run_id, metric.key)
        return (metric.step, metric.timestamp) in {
            (point.step, point.timestamp) for point in history
        }


def _metrics(point: Point) -> list[Metric]:
    """The marker last."""
    step, time_ms = point.id.step, point.id.time_ms
    metrics = [
        Metric(name, float(value), time_ms, step)
        for name, value in point.names.items()
        if value is not None
    ]
    return [*metrics, Metric(point.name_of(MARKER), float(step), time_ms, step)]


def _series(marker: str) -> str:
    return marker.removesuffix(MARKER).removesuffix("/") or STEPS
