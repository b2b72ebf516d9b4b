"""Names of workflows as they stand in Temporal's UI, and what all of them are started with."""

from datetime import timedelta
from enum import StrEnum

from mainspring.protocol.timeouts import WORKFLOW_TASK_TIMEOUT_S

NOTICE = "notice"
"""Key of a workflow's memo: what a person should know of it now."""
WORKFLOW_TASK_TIMEOUT = timedelta(seconds=WORKFLOW_TASK_TIMEOUT_S)


class Workflow(StrEnum):
    ROLLOUT = "rollout"
    GROUP = "group"
    CAMPAIGN = "campaign"
    RUN = "run"
    SFT = "sft"
    RETRAIN = "retrain"
    EXTENSIONS = "extensions"
