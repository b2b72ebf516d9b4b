"""Events: what happened to a process, or was done by a person; every kind, one sentence each.

An event is told, and decides nothing: work never reads one. Stored as text, so that a new kind is
no change of the schema; a program that does not know a kind shows its word.
"""

from enum import StrEnum


class EventKind(StrEnum):
    CAMPAIGN_STATUS = "campaign_status"
    """A campaign started, was paused or resumed, or ended."""
    COMMAND = "command"
    """A person gave a command that changes something."""
    STORE_UPGRADED = "store_upgraded"
    """The database was brought to a newer schema."""
    TRAINER_REPLACED = "trainer_replaced"
    """A trainer took the campaign over from one that had ended or was silent."""
    STEP_REPEATED = "step_repeated"
    """A step was begun again, with the same batch."""
    PUBLISH_REPEATED = "publish_repeated"
    """A policy version was given to the engines again, as an attempt before had failed."""
    ENGINE_JOINED = "engine_joined"
    """An engine answered for the first time, or registered itself."""
    ENGINE_LOST = "engine_lost"
    """An engine stopped answering."""
    ENGINE_BACK = "engine_back"
    """An engine that was lost answers again."""
    ENGINE_LEFT = "engine_left"
    """An engine ended in order and is no member any more."""
    ENGINE_RELOADED = "engine_reloaded"
    """An engine that served other weights was given the campaign's."""
    NODE_BEGAN = "node_began"
    """A sandbox node's process began, and took over what its predecessor left."""
    NODE_LOST = "node_lost"
    """A sandbox node has not been heard of for as long as workflows wait for it."""
    SANDBOX_REBUILT = "sandbox_rebuilt"
    """A lost sandbox was rebuilt by running its commands again."""
    EPOCH_BEGUN = "epoch_begun"
    """A rollout began again from its first turn."""
    PROCESS_RESTARTED = "process_restarted"
    """A process that a command keeps ended, and was started again."""
    PROCESS_FROZEN = "process_frozen"
    """A process that a command keeps stood still, and was ended."""
    SERVICE_REVIVED = "service_revived"
    """The embedded Postgres or Temporal had ended, and was started again."""
    JUDGE_FAILED = "judge_failed"
    """A judge gave no vote, after all its retries."""
    ENVIRONMENT_FAILED = "environment_failed"
    """The service of an environment ended or hung, and was started again."""


LASTING = frozenset({EventKind.CAMPAIGN_STATUS, EventKind.COMMAND, EventKind.STORE_UPGRADED})
"""Kinds that are never pruned while their campaign is stored."""
COUNTED = frozenset(
    {
        EventKind.PUBLISH_REPEATED,
        EventKind.ENGINE_LOST,
        EventKind.ENGINE_BACK,
        EventKind.ENGINE_RELOADED,
        EventKind.EPOCH_BEGUN,
        EventKind.JUDGE_FAILED,
        EventKind.ENVIRONMENT_FAILED,
    }
)
"""Kinds that may come in floods: the same about the same subject is counted in one row."""
