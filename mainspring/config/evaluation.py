"""An evaluation: the run that measures a policy or an endpoint on a slice of a task set."""

from typing import Literal

from pydantic import Field

from mainspring.config.run import RunConfig
from mainspring.config.section import CONCURRENCY
from mainspring.config.task_slice import TaskSlice
from mainspring.status import CampaignKind


class EvaluationConfig(TaskSlice, RunConfig):
    kind: Literal[CampaignKind.EVAL] = Field(default=CampaignKind.EVAL, exclude=True)
    concurrency: int = Field(default=CONCURRENCY, ge=1)
    """Number of rollouts that run at once."""
