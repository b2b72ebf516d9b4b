"""Names of workflows as they stand in Temporal's UI."""

from enum import StrEnum


class Workflow(StrEnum):
    ROLLOUT = "rollout"
    GROUP = "group"
    CAMPAIGN = "campaign"
    RUN = "run"
    SFT = "sft"
    EXTENSIONS = "extensions"
