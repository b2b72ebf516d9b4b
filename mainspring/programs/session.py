"""Sessions that agents outside take: how they end, and what an agent may hand in.

Pure. Imported by the store, the workflow and the gateway.
"""

from enum import StrEnum

MAX_PATCH_BYTES = 16 * 1024 * 1024
"""Bytes of a patch as text; grading reads it whole."""
MAX_NOTE_CHARS = 2000
"""Characters that an agent tells about its error."""


class SessionEnd(StrEnum):
    """How a session ended. The first end that is stored stands."""

    PATCH = "patch"
    """The agent handed in a patch."""
    REWARD = "reward"
    """The agent handed in a reward."""
    ERROR = "error"
    """The agent told that it failed; the rollout is masked."""
    RELEASED = "released"
    """The agent gave it back; it is offered again."""
    SILENT = "silent"
    """Neither a request nor a heartbeat came; it is offered again."""
    LIMIT = "limit"
    """A limit of the rollout was reached before anything was handed in."""


AGAIN = frozenset({SessionEnd.RELEASED, SessionEnd.SILENT})
"""Ends after which the rollout is offered again."""
