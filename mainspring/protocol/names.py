"""Names of workflows as they stand in Temporal's UI."""

from enum import StrEnum


class Workflow(StrEnum):
    ROLLOUT = "rollout"
    GROUP = "group"
    EVALUATION = "evaluation"
    CAMPAIGN = "campaign"
    RUN = "run"
