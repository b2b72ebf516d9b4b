"""Weights & Biases: one run for a campaign, whose id is made from the campaign's uid.

Invariants: each row of the run has the identity of its point, so what the run has is read from the
run itself: online from the server, offline from the files that were written. Rows are in the order
in which points were committed; the x axis of every plot is the policy version. The key is
WANDB_API_KEY of the environment.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

# Before it is imported: no reports to its makers.
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

import wandb

from infra.tracking.protocol import TrackedBy
from infra.tracking.wandb_files import rows_of
from mainspring.config.tracking import WandbMode
from mainspring.status import CampaignStatus
from mainspring.training.tracking import Point, PointId

X_AXIS, POINT = "policy_version", "point"
INIT_TIMEOUT_S = 60.0
FLUSH_S = 0.5
"""Between two writes of an offline run's file; a process that is killed loses later rows, which the
next one writes again."""


class WandbTracker:
    def __init__(self, tracked: TrackedBy) -> None:
        assert tracked.tracking.wandb is not None
        self._campaign = tracked.campaign
        self._config = tracked.tracking.wandb
        self._directory = tracked.directory
        self._run: Any = None
        self._num_rows = 0

    def open(self) -> set[PointId]:
        self._directory.mkdir(parents=True, exist_ok=True)
        is_offline = self._config.mode is WandbMode.OFFLINE
        # Read before the new run has a file of its own.
        rows = list(self._rows_of_files()) if is_offline else []
        self._run = wandb.init(
            project=self._config.project,
            entity=self._config.entity,
            id=self.run_id,
            name=self._campaign.name,
            config=dict(self._campaign.parameters),
            resume="allow",
            reinit="finish_previous",
            mode=self._config.mode.value,
            dir=str(self._directory),
            settings=_settings(),
        )
        self._run.define_metric(X_AXIS, hidden=True)
        self._run.define_metric("*", step_metric=X_AXIS)
        if not is_offline and self._run.resumed:
            rows = list(self._rows_of_server())
        self._num_rows = max(len(rows), self._run.starting_step)
        return {_point_id(row[POINT]) for row in rows if POINT in row}

    def send(self, points: Sequence[Point]) -> None:
        for point in points:
            row = {name: value for name, value in point.names.items() if value is not None}
            row |= {X_AXIS: point.id.step, POINT: str(point.id)}
            self._run.log(row, step=self._num_rows, commit=True)
            self._num_rows += 1

    def end(self, status: CampaignStatus | None) -> None:
        has_failed = status in (CampaignStatus.FAILED, CampaignStatus.CANCELLED)
        self._run.finish(exit_code=1 if has_failed else 0)

    @property
    def run_id(self) -> str:
        return self._campaign.uid.replace("-", "")

    def _rows_of_files(self) -> Iterator[dict[str, Any]]:
        for file in sorted(self._directory.glob(f"wandb/offline-run-*/run-{self.run_id}.wandb")):
            yield from rows_of(file)

    def _rows_of_server(self) -> Iterator[dict[str, Any]]:
        run = wandb.Api(timeout=30).run(self._run.path)
        yield from run.scan_history(keys=[POINT])


def _point_id(text: str) -> PointId:
    series, step, time_ms = text.rsplit("@", 2)
    return PointId(series, int(step), int(time_ms))


def _settings() -> wandb.Settings:
    """Figures of the campaign alone: nothing of this process, its machine or its code."""
    return wandb.Settings(
        console="off",
        silent=True,
        init_timeout=INIT_TIMEOUT_S,
        disable_git=True,
        disable_code=True,
        disable_job_creation=True,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
        x_transaction_log_flush_interval=FLUSH_S,
    )
