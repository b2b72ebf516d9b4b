"""Every status, end, verdict and fault there is, one sentence each.

The same strings stand in Postgres, in Temporal's search attributes and on the command line.
"""

from mainspring.status.event import EventKind
from mainspring.status.fault import FaultKind
from mainspring.status.node import (
    EngineOrigin,
    EngineStatus,
    NodeRefusal,
    NodeStatus,
    SandboxPurpose,
    SandboxStatus,
)
from mainspring.status.rollout import (
    CUT_ENDS,
    MASKED_ENDS,
    ExecutionState,
    Player,
    RolloutPhase,
    Sampling,
    StopReason,
    Suspicion,
    Verdict,
    is_masked,
)
from mainspring.status.run import (
    CampaignKind,
    CampaignStatus,
    Exclusion,
    GroupKind,
    GroupStatus,
    Incomplete,
    PolicyApi,
    Publish,
    StepStatus,
    Untrained,
    Unverified,
    Verification,
)

__all__ = [
    "CUT_ENDS",
    "MASKED_ENDS",
    "CampaignKind",
    "CampaignStatus",
    "EngineOrigin",
    "EngineStatus",
    "EventKind",
    "Exclusion",
    "ExecutionState",
    "FaultKind",
    "GroupKind",
    "GroupStatus",
    "Incomplete",
    "NodeRefusal",
    "NodeStatus",
    "Player",
    "PolicyApi",
    "Publish",
    "RolloutPhase",
    "Sampling",
    "SandboxPurpose",
    "SandboxStatus",
    "StepStatus",
    "StopReason",
    "Suspicion",
    "Untrained",
    "Unverified",
    "Verdict",
    "Verification",
    "is_masked",
]
