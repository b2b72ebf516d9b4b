"""Names of workflows, and of activities that are looked for, as they stand in Temporal's UI; and
what all workflows are started with."""

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


class AwaitedActivity(StrEnum):
    """Those that waits are told of. Here, because loading all activities takes long."""

    GENERATE = "generate"
    ANSWER_CALL = "answer_call"
    JUDGE = "judge"
    RUN_PROGRAM = "run_program"


ASKED_S = "asked_s"
"""Field of an activity's heartbeat while a reply is asked for: for how long, in seconds."""
