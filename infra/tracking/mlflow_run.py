"""The run of a campaign in MLflow, found by the tag that has the campaign's uid.

Invariant: a campaign has one run; figures and traces of one process, which come in two threads,
make it once. Imported by the trackers for MLflow before MLflow itself, whose environment it sets.
"""

import os
import threading

# Before it is imported: no reports to its makers, no log beside the process's one, and no minutes
# of retries inside one call.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_CONFIGURE_LOGGING", "false")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")

from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from infra.tracking.protocol import TrackedBy

UID_TAG = "mainspring.campaign_uid"
_MAKING = threading.Lock()


class CampaignRun:
    def __init__(self, tracked: TrackedBy) -> None:
        assert tracked.tracking.mlflow is not None
        self._campaign = tracked.campaign
        self._experiment = tracked.tracking.mlflow.experiment
        self.uri = tracked.tracking.mlflow.uri
        self.client = MlflowClient(tracking_uri=self.uri)

    def found_or_made(self) -> Run:
        with _MAKING:
            return self._find() or self._begin()

    def _find(self) -> Run | None:
        experiment = self.client.get_experiment_by_name(self._experiment)
        if experiment is None:
            return None
        runs = self.client.search_runs(
            [experiment.experiment_id],
            filter_string=f"tags.`{UID_TAG}` = '{self._campaign.uid}'",
            order_by=["attributes.start_time ASC"],
            max_results=1,
        )
        return runs[0] if runs else None

    def _begin(self) -> Run:
        tags = {UID_TAG: self._campaign.uid, "mainspring.campaign": self._campaign.name}
        return self.client.create_run(
            self._experiment_id(), run_name=self._campaign.name, tags=tags
        )

    def _experiment_id(self) -> str:
        experiment = self.client.get_experiment_by_name(self._experiment)
        if experiment is not None:
            return experiment.experiment_id
        try:
            return self.client.create_experiment(self._experiment)
        except MlflowException:  # made by another campaign's trainer at this moment
            experiment = self.client.get_experiment_by_name(self._experiment)
            if experiment is None:
                raise
            return experiment.experiment_id
