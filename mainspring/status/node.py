"""Container hosts, their sandboxes, and engines: every status, one sentence each."""

from enum import StrEnum


class SandboxPurpose(StrEnum):
    AGENT = "agent"
    """Runs the agent's commands."""
    GRADE = "grade"
    """Judges one patch, by the hidden tests or by one that a rollout wrote."""


class SandboxStatus(StrEnum):
    OPEN = "open"
    """Alive, as far as its node last said."""
    CLOSED = "closed"
    """Closed by its rollout."""
    LOST = "lost"
    """Its node or process died under it."""
    REAPED = "reaped"
    """Removed by a reaper: no live workflow owned it."""


class NodeStatus(StrEnum):
    """Status of a container host; derived from what it last said, when, and what it was asked."""

    UP = "up"
    """Said so lately."""
    DRAINING = "draining"
    """Asked to take nothing new; something is still open on it, or it has not heard yet."""
    DRAINED = "drained"
    """Takes nothing new and holds nothing: it may be stopped."""
    STOPPED = "stopped"
    """Its process ended in order and told the store."""
    LOST = "lost"
    """Has not been heard of for as long as workflows wait for it."""


class NodeRefusal(StrEnum):
    """Why a node takes no new sandbox now."""

    DRAINING = "draining"
    """An operator asked it to drain."""
    FULL = "full"
    """It holds as many as it may."""
    LOW_MEMORY = "low memory"
    """Less is free than `node_min_free_memory_mb`."""
    LOW_DISK = "low disk"
    """Less is free than `node_min_free_disk_mb`."""


class EngineOrigin(StrEnum):
    """How an engine became a member of a campaign's fleet."""

    LISTED = "listed"
    """It is in `policy.engines`."""
    ADDED = "added"
    """A person added it: `mainspring engine add`."""
    REGISTERED = "registered"
    """It reports itself: `mainspring serve --campaign`."""


class EngineStatus(StrEnum):
    """Status of an engine of a campaign; derived from its last answer and what it was asked."""

    UP = "up"
    """It answered when it was last asked."""
    JOINING = "joining"
    """It was not asked yet."""
    DRAINING = "draining"
    """It gets no new requests; some were in it when it was last asked."""
    DRAINED = "drained"
    """It gets no new requests and has none: it may be stopped."""
    LOST = "lost"
    """It did not answer for some seconds: others get its requests until it does."""
