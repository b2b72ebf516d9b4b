"""An evaluation: the run that measures a policy or an endpoint on a slice of a task set."""

from typing import Annotated, Literal

from pydantic import Field

from mainspring.config.run import RunConfig
from mainspring.config.section import CONCURRENCY, MANY, Within
from mainspring.config.task_slice import TaskSlice
from mainspring.status import CampaignKind


class EvaluationConfig(TaskSlice, RunConfig):
    kind: Literal[CampaignKind.EVAL] = Field(default=CampaignKind.EVAL, exclude=True)
    concurrency: Annotated[int, Within(le=MANY)] = Field(default=CONCURRENCY, ge=1)
    """Number of rollouts that run at once."""
