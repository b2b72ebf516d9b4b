"""Words of the store about a program's requests."""

from enum import StrEnum


class RequestState(StrEnum):
    """Where a program's request stands."""

    ASKED = "asked"
    """Stored; its reply is on the way."""
    STORED = "stored"
    """Its reply is stored, as the call of its number."""
    REFUSED = "refused"
    """It has no reply: the client was told why."""


class BranchKind(StrEnum):
    """Purpose of a branch of a program's calls."""

    MAIN = "main"
    """The agent's own turns."""
    AGENT = "agent"
    """A sub-agent's turns: other instructions or tools, or marked by the client."""
    SIDE = "side"
    """A title or a summary: a request without tools of a client that offers tools."""
